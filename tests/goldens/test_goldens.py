"""Every recorded case of a function that exists here, within the case's own tolerance."""

from collections import Counter

import pytest

from tests.goldens.adapters import adapter
from tests.goldens.balancing import CHECKS
from tests.goldens.case import FILES, Case, NotCovered, compare, nan_under_the_mask, read, unanswered
from tests.goldens.tally import TALLY

CASES = [case for file in FILES for case in read(file)]


def run(case: Case) -> str:
    """Run one case; return what became of it. Raises AssertionError for a wrong number."""
    call = adapter(case)
    if call is None:
        return f"not covered yet: {case.function}"
    if "raises" in case.outputs and "*" not in case.cautioned:
        with pytest.raises((ValueError, TypeError)):
            call(case)
        return "refused"
    if "*" in case.cautioned:
        return f"cautioned: {case.why}"
    answer = call(case)
    check = CHECKS.get(case.function)
    if check is not None:
        check(case, answer)
        return "compared"
    compared = compare(case, answer)
    assert compared or case.cautioned, f"{case.name}: nothing was compared"
    missing = unanswered(case, answer)
    if nan_under_the_mask(case):
        return "compared, but for NaN under the mask: 0 here"
    if missing:
        return f"compared, but for {', '.join(missing)}: not a number here, nothing backs it"
    return f"compared, but for {', '.join(case.cautioned)}: {case.why}" if case.cautioned else "compared"


@pytest.mark.parametrize("file", FILES)
def test_recorded_cases_of_a_file(file: str) -> None:
    wrong: list[str] = []
    outcomes: Counter[str] = Counter()
    for case in (case for case in CASES if case.file == file):
        try:
            outcomes[run(case)] += 1
        except NotCovered as missing:
            outcomes[f"not covered yet: {missing}"] += 1
        except Exception as error:
            wrong.append(f"{case.name}: {type(error).__name__}: {error}")
    TALLY[file] = outcomes
    assert not wrong, f"{len(wrong)} of {sum(outcomes.values()) + len(wrong)} cases differ:\n" + "\n".join(wrong)


def test_no_case_is_left_out_of_the_count() -> None:
    assert CASES, "no golden case was found"
    assert len({case.name for case in CASES}) == len(CASES)
