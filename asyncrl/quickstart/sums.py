"""Sums of two numbers with a fixed count of digits: their characters, prompts, answers and prompt rows.

The model sees one token a character: the ten digits, ``+``, ``=``, a pad and an end-of-sequence token.
"""

from dataclasses import dataclass
from typing import Any

CHARACTERS = "0123456789+="
PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"
VOCABULARY: dict[str, int] = {token: index for index, token in enumerate([*CHARACTERS, PAD_TOKEN, EOS_TOKEN])}
PAD_ID = VOCABULARY[PAD_TOKEN]
EOS_ID = VOCABULARY[EOS_TOKEN]

Pair = tuple[int, int]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sums:
    """Every sum of two numbers of ``digits`` digits; operands are padded with zeros, answers are not."""

    digits: int

    @property
    def pairs(self) -> list[Pair]:
        """All pairs of operands, in the order of their prompts."""
        numbers = range(10**self.digits)
        return [(left, right) for left in numbers for right in numbers]

    @property
    def prompt_length(self) -> int:
        """Tokens of every prompt.

        >>> Sums(1).prompt_length, Sums(2).prompt_length
        (4, 6)
        """
        return 2 * self.digits + 2

    @property
    def answer_length(self) -> int:
        """Tokens of the longest answer with its end-of-sequence token: for two digits ``1``, ``9``, ``8``, ``<eos>``."""
        return self.digits + 2

    def index(self, pair: Pair) -> int:
        """The place of ``pair`` in ``pairs``.

        >>> Sums(2).index((7, 35))
        735
        """
        numbers: int = 10**self.digits
        return pair[0] * numbers + pair[1]

    def prompt_text(self, pair: Pair) -> str:
        """The text before the answer.

        >>> Sums(1).prompt_text((3, 4)), Sums(2).prompt_text((7, 35))
        ('3+4=', '07+35=')
        """
        return f"{pair[0]:0{self.digits}d}+{pair[1]:0{self.digits}d}="

    def prompt_ids(self, pair: Pair) -> list[int]:
        """Token ids of the prompt, ``prompt_length`` of them."""
        return [VOCABULARY[character] for character in self.prompt_text(pair)]

    def row(self, pair: Pair, data_source: str) -> Row:
        """The prompt in the form of verl's prompt files."""
        return {
            "prompt": self.prompt_text(pair),
            "data_source": data_source,
            "reward_model": {"style": "rule", "ground_truth": answer_text(pair)},
            "extra_info": {"index": self.index(pair)},
        }


def answer_text(pair: Pair) -> str:
    """The right answer, without its end-of-sequence token.

    >>> answer_text((9, 8))
    '17'
    """
    return str(pair[0] + pair[1])


def answer_ids(pair: Pair) -> list[int]:
    """Token ids of the right answer with its end-of-sequence token.

    >>> answer_ids((9, 8))
    [1, 7, 13]
    """
    return [*(VOCABULARY[character] for character in answer_text(pair)), EOS_ID]
