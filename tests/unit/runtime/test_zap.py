"""The doorkeeper's answers, and what the monitor's events mean, one by one."""

import pytest
import zmq

from asyncrl.runtime import Keyring
from asyncrl.runtime.handshake import MOST_DOORS, CallerHandshake, OpenDoors, callee_refusal
from asyncrl.runtime.zap import Doorkeeper

JOB = Keyring.from_job_key(b"k" * 32, "controller", {"controller": ("rank",), "rank": ("controller",), "reward": ("rank",)})
TCP = "tcp://10.0.0.7:29600"


def question(public: bytes, *, version: bytes = b"1.0", domain: bytes = b"asyncrl", mechanism: bytes = b"CURVE") -> list[memoryview]:
    return [memoryview(frame) for frame in (version, b"17", domain, b"10.0.0.9", b"", mechanism, public)]


def test_a_known_key_is_let_in_under_its_role() -> None:
    refused: list[str] = []
    answer = Doorkeeper(JOB, refused.append).answer(question(JOB.for_role("rank").public))
    assert answer == [b"1.0", b"17", b"200", b"", b"rank", b""]
    assert refused == []


@pytest.mark.parametrize(
    "asked",
    [
        question(Keyring.from_job_key(b"x" * 32, "rank").public),
        question(JOB.for_role("reward").public),
        question(JOB.for_role("rank").public, mechanism=b"PLAIN"),
        question(JOB.for_role("rank").public, domain=b"other"),
        question(JOB.for_role("rank").public, version=b"2.0"),
        question(JOB.for_role("rank").public)[:6],
        question(b""),
    ],
    ids=["another job", "a role that may not call", "mechanism", "domain", "version", "no key", "empty key"],
)
def test_everybody_else_stays_outside_and_is_named_with_the_address(asked: list[memoryview]) -> None:
    refused: list[str] = []
    answer = Doorkeeper(JOB, refused.append).answer(asked)
    assert answer == [b"1.0", b"17", b"400", b"no such key", b"", b""]
    (reason,) = refused
    assert reason.startswith("the job key differs, or the role may not call controller: the caller at 10.0.0.9 shows no key of rank")


@pytest.mark.parametrize(
    ("role", "events", "reason"),
    [
        ("rank", [(zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)], f"the job key differs: {TCP} knows no key of a caller with role rank"),
        ("rank", [(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000001)], f"the job key differs: {TCP} has another key, or none"),
        ("rank", [(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000002)], f"the job key differs: {TCP} has another key, or none"),
        ("", [(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000002)], f"the job key differs: this process has none, {TCP} asks for one"),
        ("rank", [(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 32)] * 3, f"the job key differs: {TCP} has another key, or none"),
        ("rank", [(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 32)] * 2, ""),
        ("", [(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 32)] * 3, f"the job key differs: this process has none, {TCP} asks for one"),
        ("rank", [(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x10000000)], f"{TCP} breaks off the handshake; it is no process of this runtime"),
        ("rank", [(zmq.EVENT_CONNECTED, 9), (zmq.EVENT_HANDSHAKE_SUCCEEDED, 0)], ""),
    ],
)
def test_each_event_of_a_caller_says_why_the_connection_cannot_stand(role: str, events: list[tuple[int, int]], reason: str) -> None:
    handshake = CallerHandshake(TCP, role)
    said = [handshake.heard(int(event), value, 0.5) for event, value in events]
    assert said[:-1] == [""] * (len(events) - 1)
    assert said[-1].startswith(reason) if reason else said[-1] == ""
    assert handshake.stands == (zmq.EVENT_HANDSHAKE_SUCCEEDED in [event for event, _ in events])


def test_one_that_has_let_this_process_in_without_a_key_is_not_said_to_ask_for_one_when_handshakes_are_broken_off() -> None:
    connected, succeeded, hung_up, protocol = (
        int(event)
        for event in (
            zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        )
    )  # fmt: skip
    doors = OpenDoors()
    assert CallerHandshake(TCP, "", doors).heard(succeeded, 0, 0.0) == ""
    handshake = CallerHandshake(TCP, "", doors)
    for number in range(3):
        assert handshake.lost_by(connected) == ""
        assert handshake.heard(connected, 9, float(number)) == ""
        assert handshake.heard(hung_up, 32, float(number)) == ""
    assert handshake.lost_by(hung_up) == f"{TCP} hangs up"
    # What it says itself counts, and so does a key that differs where this process has one, or another place.
    said = CallerHandshake(TCP, "", doors).heard(protocol, 0x11000002, 0.0)
    assert said.startswith("the job key differs: this process has none")
    for other in (CallerHandshake(TCP, "rank", doors), CallerHandshake("tcp://10.0.0.1:2", "", doors)):
        assert [other.heard(hung_up, 32, 0.0) for _ in range(3)][-1].startswith("the job key differs")


def test_of_open_doors_the_latest_are_remembered() -> None:
    doors = OpenDoors()
    for port in range(MOST_DOORS + 2):
        doors.add(f"tcp://10.0.0.1:{port}")
    kept = [port for port in range(MOST_DOORS + 2) if f"tcp://10.0.0.1:{port}" in doors]
    assert kept == list(range(2, MOST_DOORS + 2))


def test_a_process_whose_loop_stands_still_is_not_said_to_have_another_key() -> None:
    handshake = CallerHandshake(TCP, "rank")
    for start in (0.0, 10.0, 20.0):
        assert handshake.heard(int(zmq.EVENT_CONNECTED), 9, start) == ""
        assert handshake.heard(int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), 11, start + 10.0) == ""


def test_a_connection_tells_how_far_it_has_come() -> None:
    handshake = CallerHandshake(TCP, "rank")
    seen = [handshake.state]
    for event in (zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED):
        handshake.heard(int(event), 0, 0.0)
        seen.append(handshake.state)
    connected = f"connected to {TCP}, no answer to the handshake"
    assert seen == [
        f"no connection to {TCP}", connected, f"{TCP} broke off the handshake", connected, f"connected to {TCP}, no answer to the hello",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("event", "value", "role", "reason"),
    [
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000001, "shard", "the job key differs: a caller expects another key of role shard"),
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000002, "shard", "the job key differs: a caller has none"),
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x11000002, "", "the job key differs: a caller has one, this process has none"),
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 0x10000011, "", "a caller does not speak the protocol (error 0x10000011)"),
        (
            zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
            110,
            "",
            "a caller broke off the handshake: the job key differs, or it was silent too long, or is no process of this runtime",
        ),
    ],
)
def test_each_event_of_a_process_that_is_called_is_put_in_words(event: int, value: int, role: str, reason: str) -> None:
    assert callee_refusal(int(event), value, TCP, role) == reason


def test_on_ipc_a_failed_handshake_says_nothing_of_keys() -> None:
    reason = callee_refusal(int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL), 32, "ipc:///tmp/a.sock", "")
    assert reason == "a caller broke off the handshake: it was silent too long, or is no process of this runtime"
