"""The nouns of a rollout."""

import msgspec
import pytest
from hypothesis import given, strategies as st

from asyncrl.errors import DataError
from asyncrl.trajectory import (
    GREEDY_SESSION,
    GenerateOutput,
    GenerateRequest,
    PromptGroup,
    RewardResult,
    SamplingParams,
    Status,
    StopReason,
    Trajectory,
    TrajectoryKey,
    check_uid,
    make_uid,
)

UIDS = st.text(st.characters(exclude_characters="_", codec="utf-8"), min_size=1, max_size=12)


@given(UIDS, st.one_of(st.just(GREEDY_SESSION), st.integers(0, 10**6).map(str)), st.integers(0, 10**6))
def test_a_key_reads_back_as_written(uid: str, session: str, index: int) -> None:
    key = TrajectoryKey(uid, session, index)
    assert TrajectoryKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "uA", "uA_0", "uA_x_0", "uA_0_x", "uA_0_", "_0_0", "u_A_0_0", "uA_-1_0", "uA_0_-1", "uA_0_1.5"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(DataError):
        TrajectoryKey.parse(text)


def test_keys_order_by_number_with_the_greedy_baseline_first() -> None:
    keys = ["u_10_0", "u_9_1", "u_9_0", "u_g_0", "u_9_10"]
    ordered = sorted(keys, key=lambda key: TrajectoryKey.parse(key).order())
    assert ordered == ["u_g_0", "u_9_0", "u_9_1", "u_9_10", "u_10_0"]


def test_uids_are_derived_and_hold_no_separator() -> None:
    assert make_uid(1, 0, 7) == "s1e0p7"
    assert len({make_uid(seed, epoch, at) for seed in (1, 11) for epoch in (0, 1) for at in range(20)}) == 80
    assert check_uid("s1e0p7") == "s1e0p7"
    for bad in ("", "a_b"):
        with pytest.raises(DataError, match="uid"):
            check_uid(bad)


def test_a_prompt_is_settled_when_it_finished_or_failed() -> None:
    assert [status for status in Status if status.settled] == [Status.FINISHED, Status.FAILURE]


def test_nouns_survive_the_wire_and_refuse_unknown_fields() -> None:
    sampling = SamplingParams(max_tokens=8)
    nouns = [
        sampling,
        GenerateRequest(request_id="r", uid="u", session="0", prompt_ids=[1], sampling=sampling),
        GenerateOutput(request_id="r", token_ids=[1], log_probs=[-0.5], versions=[0], stop_reason=StopReason.LENGTH),
        PromptGroup(uid="u", partition_id="train", prompt="p", data_source="d", sessions=2, sampling=sampling, seed=1, lease=1, step=1),
        Trajectory(prompt_ids=[1], response_ids=[2], response_mask=[1], log_probs=[-0.1], versions=[0]),
        RewardResult(score=0.0),
    ]
    for noun in nouns:
        wire = msgspec.msgpack.encode(noun)
        assert msgspec.msgpack.decode(wire, type=type(noun)) == noun
        plain = msgspec.to_builtins(noun) | {"surprise": 1}
        with pytest.raises(msgspec.ValidationError, match="surprise"):
            msgspec.convert(plain, type(noun))


def test_a_score_of_zero_is_a_score() -> None:
    assert RewardResult(score=0.0).score is not None
    assert RewardResult(error="boom").score is None
