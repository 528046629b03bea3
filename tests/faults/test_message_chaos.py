"""Whole messages that are dropped, delayed, duplicated, reordered and replayed on their way.

A link promises order and no duplicates, so a proxy that breaks this is an enemy, not a network. What is left to promise: no
effect twice, no answer to another question, a stream that is a prefix of the truth, and a typed end within the deadline.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from asyncrl.errors import ActorError, CallTimedOut
from asyncrl.runtime import ActorRef, ActorSystem, RealHost
from tests.faults.conftest import Peer
from tests.faults.fault_actors import Worker, into
from tests.faults.message_proxy import PEACE, Chaos, MessageProxy
from tests.faults.promises import LENIENCE, promised
from tests.faults.systems import bind

DEADLINE = 0.4
ROUNDS = 8
"""Streams that are started, one after another."""

CHAOS = {
    "drop": Chaos(drop=0.1),
    "delay": Chaos(delay=0.3, seconds=0.03),
    "duplicate": Chaos(duplicate=0.2),
    "reorder": Chaos(reorder=0.2, seconds=0.03),
    "replay": Chaos(replay=0.2),
    "all": Chaos(drop=0.03, delay=0.1, duplicate=0.1, reorder=0.1, replay=0.1, seconds=0.03),
}

FAULTS = [pytest.param(name, marks=() if name in ("drop", "duplicate", "all") else pytest.mark.faults) for name in CHAOS]

MakeProxy = Callable[[Peer, int], MessageProxy]


@pytest.fixture
def make_proxy() -> Iterator[MakeProxy]:
    made: list[MessageProxy] = []

    def make(peer: Peer, seed: int = 0) -> MessageProxy:
        proxy = MessageProxy(peer.address.endpoint, seed=seed)
        proxy.__enter__()
        made.append(proxy)
        return proxy

    yield make
    for proxy in made:
        proxy.__exit__(None, None, None)


async def ended(ref: ActorRef[Worker], key: str, results: dict[str, int], tally: Counter[str]) -> None:
    """One call with an effect; whatever its end is, it is typed and in time."""
    began = time.perf_counter()
    try:
        results[key] = await ref.call(Worker.effect, key)
        tally["result"] += 1
    except ActorError as error:
        tally[type(error).__name__] += 1
    assert time.perf_counter() - began < LENIENCE * DEADLINE


async def storm(worker: ActorRef[Worker], direct: ActorRef[Worker], rounds: int, wide: int) -> Counter[str]:
    """Rounds of calls at the same time, each with an effect of its own. Returns how they ended."""
    results: dict[str, int] = {}
    tally: Counter[str] = Counter()
    for turn in range(rounds):
        keys = [f"{turn}.{number}" for number in range(wide)]
        await asyncio.gather(*[ended(worker, key, results, tally) for key in keys])
    effects = await direct.call(Worker.all_effects)
    assert set(effects.values()) <= {1}
    assert set(results.values()) <= {1}
    assert results.keys() <= effects.keys()
    assert tally.total() == rounds * wide
    return tally


@pytest.mark.parametrize("fault", FAULTS)
async def test_calls_end_typed_in_time_and_with_one_effect(inside: Peer, caller: ActorSystem, make_proxy: MakeProxy, fault: str) -> None:
    proxy = make_proxy(inside, 1)
    worker, direct = inside.worker(caller, proxy.endpoint).with_deadline(DEADLINE), inside.worker(caller)
    assert await worker.call(Worker.echo, 1) == 1
    proxy.to_callee = proxy.to_caller = CHAOS[fault]
    await storm(worker, direct, 4, 50)
    assert proxy.faults("passed") > 50
    proxy.to_callee = proxy.to_caller = PEACE
    assert await worker.call(Worker.echo, 2) == 2
    assert sum(proxy.faults(fate) for fate in ("dropped", "delayed", "duplicated", "reordered", "replayed"))


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(2, 22))
@pytest.mark.parametrize("fault", CHAOS)
async def test_calls_end_typed_in_time_and_with_one_effect_over_many_seeds(
    inside: Peer, caller: ActorSystem, make_proxy: MakeProxy, fault: str, seed: int
) -> None:
    proxy = make_proxy(inside, seed)
    proxy.to_callee = proxy.to_caller = CHAOS[fault]
    await storm(inside.worker(caller, proxy.endpoint).with_deadline(DEADLINE), inside.worker(caller), 10, 50)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_stream_is_a_prefix_of_the_truth(inside: Peer, caller: ActorSystem, make_proxy: MakeProxy, fault: str) -> None:
    proxy = make_proxy(inside, 1)
    worker = inside.worker(caller, proxy.endpoint).with_deadline(DEADLINE)
    proxy.to_callee = proxy.to_caller = CHAOS[fault]
    whole = broken = 0
    for _ in range(ROUNDS):
        seen: list[int] = []
        try:
            await into(seen, worker.stream(Worker.numbers, 40))
            whole += 1
            assert len(seen) == 40
        except ActorError:
            broken += 1
        assert seen == list(range(len(seen)))
    assert whole + broken == ROUNDS


async def test_a_caller_that_starts_anew_under_the_same_name_gets_answers_to_its_own_calls(inside: Peer, folder: str) -> None:
    """The callee remembers the answers of idempotent calls, also of a caller that has left."""
    for number in range(3):
        async with bind("caller", f"ipc://{folder}/caller-{number}.sock", RealHost()) as again:
            assert await inside.worker(again).call(Worker.idempotent_effect, f"k{number}") == 1
            assert await inside.worker(again).call(Worker.all_effects) == {f"k{each}": 1 for each in range(number + 1)}


async def test_a_lost_reply_is_a_timeout_that_names_the_call(inside: Peer, caller: ActorSystem, make_proxy: MakeProxy) -> None:
    proxy = make_proxy(inside, 0)
    proxy.to_caller = Chaos(drop=1.0, kinds=("reply",))
    async with promised(DEADLINE, "reply that is lost"):
        with pytest.raises(CallTimedOut, match=r"worker@there did not answer Worker.effect within 0.4 s") as caught:
            await inside.worker(caller, proxy.endpoint).with_deadline(DEADLINE).call(Worker.effect, "k")
    assert (caught.value.who, caught.value.what, caught.value.seconds) == ("worker@there", "Worker.effect", DEADLINE)
    assert await inside.worker(caller).call(Worker.all_effects) == {"k": 1}


async def test_a_lost_call_never_runs(inside: Peer, caller: ActorSystem, make_proxy: MakeProxy) -> None:
    proxy = make_proxy(inside, 0)
    proxy.to_callee = Chaos(drop=1.0, kinds=("call",))
    async with promised(DEADLINE, "call that is lost"):
        with pytest.raises(CallTimedOut):
            await inside.worker(caller, proxy.endpoint).with_deadline(DEADLINE).call(Worker.effect, "k")
    assert await inside.worker(caller).call(Worker.all_effects) == {}


async def test_a_lost_hello_or_welcome_is_a_typed_end_within_the_deadline(inside: Peer, caller: ActorSystem, make_proxy: MakeProxy) -> None:
    for kind in ("hello", "welcome"):
        proxy = make_proxy(inside, 0)
        proxy.to_callee = proxy.to_caller = Chaos(drop=1.0, kinds=(kind,))
        async with promised(DEADLINE, f"{kind} that is lost"):
            with contextlib.suppress(ActorError):
                assert await inside.worker(caller, proxy.endpoint).with_deadline(DEADLINE).call(Worker.echo, 3) == 3


async def test_a_lost_item_is_no_gap_that_nobody_sees(inside: Peer, caller: ActorSystem, make_proxy: MakeProxy) -> None:
    proxy = make_proxy(inside, 3)
    proxy.to_caller = Chaos(drop=0.1, kinds=("item",))
    seen: list[int] = []
    with pytest.raises(ActorError):
        await into(seen, inside.worker(caller, proxy.endpoint).with_deadline(DEADLINE).stream(Worker.numbers, 100))
    assert seen == list(range(len(seen)))
    assert len(seen) < 100
