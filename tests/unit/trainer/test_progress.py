"""How many issues in a row were in vain, by hand and against a plain count."""

from hypothesis import given, settings, strategies as st

from asyncrl.trainer.progress import Progress


def issued(progress: Progress, *uids: str) -> None:
    for uid in uids:
        progress.issue(uid)


def test_a_row_counts_in_the_order_of_issue_whatever_ends_first() -> None:
    progress = Progress(limit=3)
    issued(progress, "a", "b", "c", "d", "e")
    progress.lose(["e", "d"])
    progress.lose(["a", "b"])
    assert (progress.longest, progress.stopped) == (2, False)
    # What ran between them joins the rows.
    progress.lose(["c"])
    assert (progress.longest, progress.stopped) == (5, True)


def test_a_group_that_waits_to_be_trained_ends_a_row() -> None:
    progress = Progress(limit=3)
    issued(progress, "a", "b", "good", "c", "d")
    progress.lose(["a", "b", "c", "d"])
    assert progress.longest == 2


def test_each_lease_of_a_prompt_is_an_issue() -> None:
    progress = Progress(limit=2)
    for _ in range(3):
        progress.issue("a")
        progress.lose(["a"])
    assert progress.stopped


def test_a_batch_that_was_trained_begins_a_new_count() -> None:
    progress = Progress(limit=1)
    issued(progress, "a", "b", "good")
    progress.lose(["a", "b"])
    assert (progress.longest, progress.stopped) == (2, True)
    progress.train(["good"])
    progress.begin()
    assert (progress.longest, progress.stopped) == (0, False)
    issued(progress, "c")
    progress.lose(["c"])
    assert progress.longest == 1


@settings(max_examples=60, deadline=None)
@given(ends=st.permutations(range(12)), good=st.sets(st.integers(0, 11)))
def test_the_longest_row_is_that_of_a_plain_count(ends: list[int], good: set[int]) -> None:
    progress, lost = Progress(limit=12), ["."] * 12
    issued(progress, *map(str, range(12)))
    for number in ends:
        if number not in good:
            progress.lose([str(number)])
            lost[number] = "x"
        assert progress.longest == max(len(row) for row in "".join(lost).split("."))
