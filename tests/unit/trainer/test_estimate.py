"""What the controller makes of the tags of a batch: rows that train, greedy scores apart, groups and votes for every rank."""

import pytest

from asyncrl.trainer.batch import KVBatchMeta, collect, cut
from asyncrl.trainer.estimate import outcome_rows, row_facts


def tag(score: float, lengths: tuple[int, int, int] = (2, 3, 2)) -> dict[str, object]:
    prompt, response, trainable = lengths
    return {"score": score, "prompt_len": prompt, "response_len": response, "seq_len": prompt + response, "trainable_len": trainable}


ROWS = {
    "b_0_0": tag(0.0),
    "a_g_0": tag(9.0),
    "a_g_1": tag(9.0),
    "a_1_0": tag(1.0, (2, 4, 4)),
    "a_0_1": tag(0.5, (5, 2, 1)),
    "a_0_0": tag(0.5),
    "b_2_0": tag(1.0, (2, 0, 0)),
}


@pytest.fixture
def batch() -> KVBatchMeta:
    return collect("train", ["b", "a"], ROWS, step=3)


def test_greedy_rows_are_no_rows_of_the_batch_and_their_score_is_the_baseline_of_their_prompt(batch: KVBatchMeta) -> None:
    assert batch.keys == ("b_0_0", "b_2_0", "a_0_0", "a_0_1", "a_1_0")
    assert batch.groups == (0, 0, 1, 1, 1)
    assert batch.greedy == ("a_g_0", "a_g_1")
    assert batch.baselines == (None, 9.0)
    assert batch.scores == [0.0, 1.0, 0.5, 0.5, 1.0]


def test_an_estimator_of_outcomes_gets_trainable_tokens_sessions_and_outputs(batch: KVBatchMeta) -> None:
    rows = outcome_rows(batch, [0.0, 1.0, 0.5, 0.5, 0.75], {})
    assert rows.lengths.tolist() == [2, 0, 2, 1, 4]
    assert rows.groups.tolist() == [0, 0, 1, 1, 1]
    assert rows.scores.tolist() == [0.0, 1.0, 0.5, 0.5, 0.75]
    assert rows.sessions is not None
    assert rows.indices is not None
    assert (rows.sessions[2:] == rows.sessions[2]).tolist() == [True, True, False]
    assert rows.indices.tolist() == [0, 0, 0, 1, 0]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_is_told_of_its_rows_in_its_order_and_of_the_whole_alike(batch: KVBatchMeta, ranks: int) -> None:
    shares = cut(batch, [[0, 1]], ranks)
    facts = row_facts(batch, shares)
    told = {
        key: (group, vote, baseline)
        for share, fact in zip(shares, facts, strict=True)
        for key, group, vote, baseline in zip(share.keys, fact.groups, fact.votes, fact.baselines, strict=True)
    }
    assert told == {
        "b_0_0": (0, True, None),
        "b_2_0": (0, True, None),
        "a_0_0": (1, False, 9.0),
        "a_0_1": (1, True, 9.0),
        "a_1_0": (1, True, 9.0),
    }
    assert {(fact.group_count, fact.width) for fact in facts} == {(2, 4)}


def test_a_prompt_with_one_session_left_has_no_vote() -> None:
    batch = collect("train", ["a", "b"], {"a_0_0": tag(1.0), "b_0_0": tag(1.0), "b_1_0": tag(0.0)}, step=1)
    assert row_facts(batch, cut(batch, [[0, 1]], 1))[0].votes == [False, True, True]
