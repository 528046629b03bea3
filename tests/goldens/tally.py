"""What became of the cases of each file, for the summary that ends a test run."""

from collections import Counter

TALLY: dict[str, Counter[str]] = {}
FLOAT32: dict[str, Counter[str]] = {}
"""The same of the pass in float32."""


def lines() -> list[str]:
    """One line a file and pass, and one for each reason why cases were not compared in full."""
    text = []
    for file, outcomes in TALLY.items():
        full = sum(count for outcome, count in outcomes.items() if outcome in ("compared", "refused"))
        missing = sum(count for outcome, count in outcomes.items() if outcome.startswith("not covered"))
        total = sum(outcomes.values())
        text.append(f"{file}: {total} cases, {full} compared, {total - full - missing} cautioned, {missing} not covered yet")
        text += [f"    {count:3d} {outcome}" for outcome, count in sorted(outcomes.items()) if outcome not in ("compared", "refused")]
    for file, outcomes in FLOAT32.items():
        moved = outcomes["moved by its inputs"]
        text.append(f"{file} in float32: {outcomes['within']} within 1e-5, {moved} moved further by the rounding of their inputs alone")
    return text
