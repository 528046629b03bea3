"""Options of sampler and filter that nothing reads are named at the start, each in a line; what is read is not."""

import pytest

from asyncrl.config.load import load_config

SAMPLER, FILTER = "trainer.v1.sampler", "algorithm.filter_groups"
ASYNC = "trainer.v1.trainer_mode=colocate_async"
FILTERING = f"{FILTER}.enable=true"
OWN = (f"{SAMPLER}.custom_sampler.path=sampler.py", f"{SAMPLER}.custom_sampler.name=Picky")


def idle(*given: str) -> list[str]:
    """What is said to have no effect."""
    return [notice for notice in load_config(["config=quickstart", *given]).notices if "has no effect" in notice]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            [ASYNC, f"{SAMPLER}.sync_refill_failed_groups=true"],
            f"{SAMPLER}.sync_refill_failed_groups has no effect: colocate_async replaces",
        ),
        (
            [ASYNC, FILTERING, f"{FILTER}.max_inflight_gen_batches=3"],
            f"{FILTER}.max_inflight_gen_batches has no effect: in colocate_async num_warmup_batches",
        ),
        ([f"{FILTER}.max_inflight_gen_batches=3"], f"{FILTER}.max_inflight_gen_batches has no effect without {FILTER}.enable"),
        ([f"{FILTER}.max_num_gen_batches=3"], f"{FILTER}.max_num_gen_batches has no effect without {FILTER}.enable"),
        (["+trainer.v1.sampler.sampler_kwargs.most=3"], f"{SAMPLER}.sampler_kwargs has no effect without custom_sampler"),
        ([*OWN, f"{SAMPLER}.max_off_policy_threshold=3"], f"{SAMPLER}.max_off_policy_threshold has no effect: Picky chooses"),
        ([ASYNC, *OWN, f"{SAMPLER}.max_off_policy_threshold=null"], f"{SAMPLER}.max_off_policy_threshold has no effect: Picky chooses"),
        ([*OWN, f"{SAMPLER}.max_off_policy_strategy=wait"], f"{SAMPLER}.max_off_policy_strategy has no effect: Picky chooses"),
        ([*OWN, f"{SAMPLER}.sync_refill_failed_groups=true"], f"{SAMPLER}.sync_refill_failed_groups has no effect: Picky chooses"),
        ([*OWN, FILTERING], f"{FILTER}.enable has no effect: Picky chooses"),
        ([*OWN, f"{FILTER}.max_inflight_gen_batches=3"], f"{FILTER}.max_inflight_gen_batches has no effect: Picky chooses"),
    ],
)
def test_an_option_that_nothing_reads_is_named(given: list[str], said: str) -> None:
    [notice] = idle(*given)
    assert notice.startswith(said)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [ASYNC, FILTERING, f"{FILTER}.max_num_gen_batches=3"],
        [FILTERING, f"{FILTER}.max_num_gen_batches=3", f"{FILTER}.max_inflight_gen_batches=3", f"{SAMPLER}.sync_refill_failed_groups=true"],
        [ASYNC, f"{SAMPLER}.max_off_policy_threshold=3", f"{SAMPLER}.max_off_policy_strategy=wait"],
        [*OWN, "+trainer.v1.sampler.sampler_kwargs.most=3"],
    ],
)
def test_nothing_is_said_of_options_that_are_read(given: list[str]) -> None:
    assert idle(*given) == []


def test_a_sampler_of_the_user_is_not_said_to_bound_nothing() -> None:
    notices = load_config(["config=quickstart", ASYNC, *OWN, f"{SAMPLER}.max_off_policy_threshold=null"]).notices
    assert not [notice for notice in notices if "nothing bounds" in notice]
