"""The life of a key, from events that were written by hand."""

from asyncrl.observe.events import Event
from asyncrl.observe.trace import FieldNow, life_of, timeline
from asyncrl.runtime.records import Noted, Plain, Waited


def note(time: float, name: str, subjects: list[str], **attributes: Plain) -> Event:
    told: dict[str, Plain] = {
        "by": "agent-0",
        "partition": "train",
        "step": 1,
        "version": 0,
        "shard": 0,
        "fields": "",
        "tag": "",
        **attributes,
    }
    return Event(time, "shard-0", 0, Noted(time, name, subjects, "t1", told))


EVENTS = [
    note(100.0, "queue.put", ["u"], tag='{"status":"running"}'),
    Event(100.1, "shard-0", 0, Waited(100.1, "x", "y", 2.0)),
    note(101.0, "queue.put", ["u_0_0", "u_1_0"], fields="prompts,responses"),
    note(101.0, "queue.tags", ["u"], tag='{"status":"finished"}'),
    note(102.0, "queue.get", ["u_0_0", "v_0_0"], fields="responses", by="policy-0"),
    note(102.5, "queue.get", ["u_0_0"], fields="responses", by="policy-1"),
    note(103.0, "queue.put", ["u_0_0"], fields="old_log_probs", by="policy-0", step=2, version=1),
    note(104.0, "queue.clear", ["v_0_0", "u_1_0"], by="controller"),
]


def test_a_row_has_its_own_life_and_that_of_its_prompts_marker() -> None:
    life = life_of(EVENTS, "u_0_0")
    assert [(step.seconds, step.key, step.verb, step.by) for step in life.steps] == [
        (0.0, "u", "put", "agent-0"),
        (1.0, "u_0_0", "put", "agent-0"),
        (1.0, "u", "tags", "agent-0"),
        (2.0, "u_0_0", "get", "policy-0"),
        (2.5, "u_0_0", "get", "policy-1"),
        (3.0, "u_0_0", "put", "policy-0"),
    ]
    assert life.fields_now() == [
        FieldNow("train", "u_0_0", "old_log_probs", "policy-0", 3.0, 2, 1, ""),
        FieldNow("train", "u_0_0", "prompts", "agent-0", 1.0, 1, 0, ""),
        FieldNow("train", "u_0_0", "responses", "agent-0", 1.0, 1, 0, "policy-0"),
    ]


def test_a_prompt_has_the_lives_of_all_its_rows_and_what_is_cleared_holds_nothing() -> None:
    life = life_of(EVENTS, "u")
    assert {step.key for step in life.steps} == {"u", "u_0_0", "u_1_0"}
    assert {held.key for held in life.fields_now()} == {"u_0_0"}


def test_rows_of_one_key_in_two_partitions_have_lives_of_their_own() -> None:
    events = [
        note(1.0, "queue.put", ["u_0_0"], fields="x", by="agent-0"),
        note(2.0, "queue.put", ["u_0_0"], fields="x", by="agent-1", partition="val"),
        note(3.0, "queue.get", ["u_0_0"], fields="x", by="policy-0", partition="val"),
        note(4.0, "queue.put", ["u_0_0"], fields="y", by="agent-1", partition="val"),
    ]
    train = FieldNow("train", "u_0_0", "x", "agent-0", 0.0, 1, 0, "")
    life = life_of(events, "u_0_0")
    assert life.fields_now() == [
        train,
        FieldNow("val", "u_0_0", "x", "agent-1", 1.0, 1, 0, "policy-0"),
        FieldNow("val", "u_0_0", "y", "agent-1", 3.0, 1, 0, ""),
    ]
    assert [life.where(step.partition, step.key) for step in life.steps] == ["train/u_0_0", *["val/u_0_0"] * 3]
    cleared = life_of([*events, note(5.0, "queue.clear", ["u_0_0"], partition="val")], "u_0_0")
    assert cleared.fields_now() == [train]
    assert life_of(events[:1], "u_0_0").where("train", "u_0_0") == "u_0_0"


def test_a_timeline_has_a_line_for_each_process() -> None:
    lines = timeline(life_of(EVENTS, "u_0_0")).splitlines()
    assert [line.split()[0] for line in lines] == ["agent-0", "policy-0", "policy-1"]
    assert lines[0].split()[1][0] == "p"
    assert lines[1].split()[1][-1] == "p"


def test_nothing_is_told_of_a_key_that_nobody_touched() -> None:
    assert life_of(EVENTS, "w_0_0").steps == []
