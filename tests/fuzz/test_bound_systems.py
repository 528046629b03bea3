"""Broken and random messages against a system that listens: it goes on, and serves who is entitled to it."""

from functools import partial

import pytest

from asyncrl.runtime import Keyring
from tests.faults.systems import ROLE
from tests.fuzz.attackers import Attack
from tests.fuzz.fort import JOB_KEY, Fort
from tests.fuzz.mutation import TOKEN

WRONG_TOKENS = {"another": b"x" * 32, "shorter": TOKEN[:-1], "none": b"", "longer": TOKEN + b"t"}


def strangers(fort: Fort, seed: int) -> list[Attack]:
    """Peers without the job's token."""
    return [Attack(fort.endpoint, "there", seed + i, token, "stranger") for i, token in enumerate(WRONG_TOKENS.values())]


def insiders(fort: Fort, seed: int, keys: Keyring | None = None) -> list[Attack]:
    """Peers with the job's token, and its keys where there are some."""
    return [Attack(fort.endpoint, "there", seed + i, keys=keys) for i in range(2)]


async def nothing_is_accepted(fort: Fort, attacks: list[Attack], count: int, burst: int) -> None:
    """Strangers get refusals, and nothing of theirs reaches an actor."""
    seen = await fort.stands(*[partial(attack.run, count // len(attacks), burst) for attack in attacks])
    assert seen.callers.keys() == {"caller"}
    for attack in attacks:
        assert attack.answers.keys() == {"Refused"}


async def what_is_accepted_is_typed(fort: Fort, attacks: list[Attack], count: int) -> None:
    """Insiders get a typed error, or a call with well-typed arguments."""
    seen = await fort.stands(*[partial(attack.run, count // len(attacks)) for attack in attacks])
    assert any(name.startswith("insider") for name in seen.callers)
    for attack in attacks:
        assert {"Welcome", "Reply", "Failure", "Refused"} <= attack.answers.keys()


async def test_a_stranger_is_refused_and_harms_nobody(fort: Fort) -> None:
    await nothing_is_accepted(fort, strangers(fort, 1), 4000, 20)


async def test_an_insider_gets_typed_errors_and_harms_nobody(fort: Fort) -> None:
    await what_is_accepted_is_typed(fort, insiders(fort, 11), 2000)


async def test_a_flood_that_reads_no_answers_does_not_fill_the_memory(fort: Fort) -> None:
    seen = await fort.stands(*[partial(attack.flood, 2000) for attack in strangers(fort, 21)])
    assert seen.callers.keys() == {"caller"}


async def test_an_insider_with_the_key_gets_typed_errors_and_harms_nobody(sealed_fort: Fort) -> None:
    await what_is_accepted_is_typed(sealed_fort, insiders(sealed_fort, 31, Keyring.from_job_key(JOB_KEY, ROLE)), 1000)


@pytest.mark.parametrize("keys", [None, Keyring.from_job_key(b"x" * 32, ROLE)], ids=["none", "another"])
async def test_a_stranger_without_the_key_is_never_heard(sealed_fort: Fort, keys: Keyring | None) -> None:
    attacks = [Attack(sealed_fort.endpoint, "there", 41 + i, b"", "stranger", keys) for i in range(2)]
    seen = await sealed_fort.stands(*[partial(attack.is_not_heard, 1000) for attack in attacks])
    assert seen.callers.keys() == {"caller"}


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_messages_of_insiders_with_the_key_harm_nobody(sealed_fort: Fort) -> None:
    await what_is_accepted_is_typed(sealed_fort, insiders(sealed_fort, 501, Keyring.from_job_key(JOB_KEY, ROLE)), 100_000)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_messages_of_strangers_are_refused(fort: Fort) -> None:
    await nothing_is_accepted(fort, strangers(fort, 101), 100_000, 20)


@pytest.mark.faults
@pytest.mark.timeout(600)
async def test_a_hundred_thousand_messages_of_insiders_harm_nobody(fort: Fort) -> None:
    await what_is_accepted_is_typed(fort, insiders(fort, 201), 100_000)


@pytest.mark.faults
@pytest.mark.timeout(600)
@pytest.mark.parametrize("who", ["strangers", "insiders"])
async def test_a_flood_of_a_hundred_thousand_messages_does_not_fill_the_memory(fort: Fort, who: str) -> None:
    attacks = strangers(fort, 301) if who == "strangers" else insiders(fort, 401)
    await fort.stands(*[partial(attack.flood, 100_000 // len(attacks)) for attack in attacks])
