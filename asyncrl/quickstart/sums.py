"""The one-digit sums: their characters, prompts, answers and prompt rows.

The model sees one token a character: the ten digits, ``+``, ``=``, a pad and an end-of-sequence token.
"""

from typing import Any

CHARACTERS = "0123456789+="
PAD_TOKEN = "<pad>"
EOS_TOKEN = "<eos>"
VOCABULARY: dict[str, int] = {token: index for index, token in enumerate([*CHARACTERS, PAD_TOKEN, EOS_TOKEN])}
PAD_ID = VOCABULARY[PAD_TOKEN]
EOS_ID = VOCABULARY[EOS_TOKEN]

DATA_SOURCE = "add1_train"
"""All hundred prompts are trained, so accuracy on them is training-set accuracy."""
PROMPT_LENGTH = 4
"""Tokens of every prompt, such as ``3+4=``."""
ANSWER_LENGTH = 3
"""Tokens of the longest answer with its end-of-sequence token: ``1``, ``8``, ``<eos>``."""

Pair = tuple[int, int]
PAIRS: list[Pair] = [(left, right) for left in range(10) for right in range(10)]


def prompt_text(pair: Pair) -> str:
    """The text before the answer.

    >>> prompt_text((3, 4))
    '3+4='
    """
    return f"{pair[0]}+{pair[1]}="


def answer_text(pair: Pair) -> str:
    """The right answer, without its end-of-sequence token.

    >>> answer_text((9, 8))
    '17'
    """
    return str(pair[0] + pair[1])


def prompt_ids(pair: Pair) -> list[int]:
    """Token ids of the prompt, ``PROMPT_LENGTH`` of them."""
    return [VOCABULARY[character] for character in prompt_text(pair)]


def answer_ids(pair: Pair) -> list[int]:
    """Token ids of the right answer with its end-of-sequence token.

    >>> answer_ids((9, 8))
    [1, 7, 13]
    """
    return [*(VOCABULARY[character] for character in answer_text(pair)), EOS_ID]


def prompt_rows() -> list[dict[str, Any]]:
    """The hundred prompts in the form of verl's prompt files."""
    return [
        {
            "prompt": prompt_text(pair),
            "data_source": DATA_SOURCE,
            "reward_model": {"style": "rule", "ground_truth": answer_text(pair)},
            "extra_info": {"index": index},
        }
        for index, pair in enumerate(PAIRS)
    ]
