"""What validation makes of the results of its sessions, against numbers worked out by hand."""

import pytest

from asyncrl.rewards.reward import normalise
from asyncrl.runtime import ActorSystem
from asyncrl.trainer.batch import KVBatchMeta
from asyncrl.trainer.feeder import Feeder, GroupSettings
from asyncrl.trainer.replay_buffer import ReplayBuffer
from asyncrl.trainer.validation import SessionResult, Validation, session_results, summarise
from asyncrl.trajectory import SamplingParams
from asyncrl.transfer_queue.client import TransferQueue
from asyncrl.transfer_queue.shard import QueueShard


def results(source: str, name: str, by_uid: dict[str, list[float]]) -> list[SessionResult]:
    return [SessionResult(source, uid, {"reward": value, name: value}) for uid, values in by_uid.items() for value in values]


def test_pass_at_n_is_the_share_of_prompts_with_a_right_answer_among_n() -> None:
    numbers = summarise(results("held", "acc", {"a": [0, 0, 1], "b": [0, 0, 0], "c": [1, 1, 1], "d": [0, 1, 0]}), sessions=3)
    assert numbers["val-aux/held/pass@3"] == 3 / 4
    assert numbers["val-core/held/acc/mean@3"] == pytest.approx((1 / 3 + 0 + 1 + 1 / 3) / 4)


def test_each_source_has_its_own_pass_at_n_and_one_uid_in_two_sources_counts_twice() -> None:
    numbers = summarise(results("held", "acc", {"a": [0, 1]}) + results("train", "acc", {"a": [0, 0], "b": [0, 1]}), sessions=2)
    assert numbers["val-aux/held/pass@2"] == 1.0
    assert numbers["val-aux/train/pass@2"] == 0.5


def test_a_right_answer_has_full_accuracy_and_a_part_of_it_does_not_pass() -> None:
    assert summarise(results("s", "acc", {"a": [0.5, 0.99], "b": [0.0, 1.0]}), sessions=2)["val-aux/s/pass@2"] == 0.5


def test_accuracy_decides_over_the_reward_and_without_accuracy_the_reward_does() -> None:
    reversed_reward = [SessionResult("s", "a", {"reward": 1.0, "acc": 0.0})] * 2
    assert summarise(reversed_reward, sessions=2)["val-aux/s/pass@2"] == 0.0
    only_reward = [SessionResult("s", uid, {"reward": reward}) for uid, reward in (("a", 0.0), ("a", 1.0), ("b", 0.2), ("b", 0.3))]
    assert summarise(only_reward, sessions=2)["val-aux/s/pass@2"] == 0.5


def test_one_session_a_prompt_has_no_pass_at_n() -> None:
    assert summarise(results("s", "acc", {"a": [1]}), sessions=1) == {"val-core/s/acc/mean@1": 1.0, "val-aux/s/reward/mean@1": 1.0}


def test_nothing_validated_gives_no_numbers() -> None:
    assert summarise([], sessions=16) == {}


def batch(*rows: tuple[str, str, int, float]) -> KVBatchMeta:
    tags = tuple({"uid": uid, "session": session, "index": index, "score": score} for uid, session, index, score in rows)
    return KVBatchMeta("val", ("a",), tuple(f"{tag['uid']}_{tag['session']}_{tag['index']}" for tag in tags), tags, (0,) * len(tags), 1)


def test_only_the_last_output_of_a_session_counts() -> None:
    found = session_results(batch(("a", "0", 0, 0.0), ("a", "0", 1, 1.0)), [{"acc": 0.0}, {"acc": 1.0}], {"a": "s"}, sessions=1)
    assert summarise(found, 1)["val-core/s/acc/mean@1"] == 1.0


def test_a_failed_session_counts_as_wrong_beside_the_accuracy_of_those_that_did_not_fail() -> None:
    found = session_results(batch(("a", "0", 0, 1.0)), [{"acc": 1.0}], {"a": "s"}, sessions=2)
    numbers = summarise(found, 2)
    assert numbers["val-core/s/acc/mean@2"] == 0.5
    assert numbers["val-aux/s/acc_success_only/mean@1"] == 1.0


def test_a_failed_session_of_a_source_without_accuracy_is_a_reward_of_zero() -> None:
    found = session_results(batch(("a", "0", 0, 0.8)), [{}], {"a": "s"}, sessions=2)
    numbers = summarise(found, 2)
    assert (numbers["val-core/s/reward/mean@2"], numbers["val-aux/s/reward/std@2"], numbers["val-aux/s/pass@2"]) == (0.4, 0.4, 0.0)


def test_a_source_of_failures_alone_has_a_reward_of_zero() -> None:
    assert summarise(session_results(batch(), [], {"a": "s"}, sessions=1), 1) == {"val-core/s/reward/mean@1": 0.0}


def test_what_an_answer_amounts_to_is_its_vote_for_the_majority() -> None:
    rows = batch(("a", "0", 0, 1.0), ("a", "1", 0, 0.0), ("a", "2", 0, 1.0))
    extras = [{"acc": 1.0, "pred": "7"}, {"acc": 0.0, "pred": "8"}, {"acc": 1.0, "pred": "7"}]
    numbers = summarise(session_results(rows, extras, {"a": "s"}, sessions=3), 3)
    assert numbers["val-core/s/acc/maj@3/mean"] > numbers["val-core/s/acc/mean@3"]
    assert "val-core/s/acc/maj@3/mean" not in summarise(session_results(rows, extras, {"a": "s"}, sessions=4), 4)


def test_extras_that_differ_from_row_to_row_are_averaged_over_the_rows_that_have_them() -> None:
    """A plain number, a dict with an accuracy, and a dict with other keys, some of which are no numbers."""
    returned = [0.5, {"score": 1.0, "acc": 0.0}, {"score": 0.0, "format": 0.25, "note": "late", "parts": [1, 2], "none": None}]
    judged = [normalise(each) for each in returned]
    assert [each.error for each in judged] == [""] * 3
    rows = batch(*((uid, "0", 0, float(each.score or 0.0)) for uid, each in zip("abc", judged, strict=True)))
    found = session_results(rows, [each.extra for each in judged], dict.fromkeys("abc", "s"), sessions=1)
    assert summarise(found, 1) == {
        "val-core/s/acc/mean@1": 0.25,
        "val-aux/s/acc_success_only/mean@1": 0.25,
        "val-aux/s/reward/mean@1": 0.5,
        "val-aux/s/format/mean@1": 0.25,
    }


def test_two_rows_of_one_text_stay_two_uids_and_a_batch_that_does_not_divide_loses_nobody() -> None:
    rows = batch(*((f"p{number}", "0", 0, float(number < 7)) for number in range(10)))
    found = session_results(rows, [{"acc": float(number < 7)} for number in range(10)], {f"p{n}": "s" for n in range(10)}, sessions=1)
    assert len(found) == 10
    assert summarise(found, 1)["val-core/s/acc/mean@1"] == 0.7


async def test_what_a_validation_that_was_cut_short_has_left_is_cleared() -> None:
    async with ActorSystem.local() as system:
        queue = TransferQueue([await system.spawn(QueueShard, 0, name="shard-0")])
        settings = GroupSettings("val", 1, SamplingParams(max_tokens=1), 1, "single_turn_agent")
        validation = Validation(
            queue,
            Feeder(queue, [], settings),
            ReplayBuffer(queue, "val", print),
            [],
            sessions=1,
            seed=1,
            batch_size=None,
            host=system.host,
            say=print,
            lease_seconds=60.0,
        )
        await queue.kv_batch_put(["s1v4p0", "s1v4p0_0_0"], "val", tags=[{"is_prompt": True, "status": "finished"}, {"status": "success"}])
        await queue.kv_put("s1e0p0", "train", tag={"is_prompt": True, "status": "finished"})
        await validation.forget()
        assert not await queue.kv_list("val")
        assert list(await queue.kv_list("train")) == ["s1e0p0"]
