"""The declarations of the stages."""

import pytest

from asyncrl.agents.columns import WRITES
from asyncrl.errors import TransferError
from asyncrl.workers.fields import FIELDS, ROLLOUT, STAGES, TOKEN_ADVANTAGES, UPDATE


def test_a_stage_without_fields_that_nothing_asks_for_neither_reads_nor_writes_them() -> None:
    assert ROLLOUT.without("reward_components").writes == WRITES
    assert "ref_log_prob" not in UPDATE.without("ref_log_prob").reads
    assert TOKEN_ADVANTAGES.without("values").writes == ("advantages", "returns")


def test_a_stage_cannot_do_without_a_field_that_it_never_declared() -> None:
    with pytest.raises(ValueError, match="update neither reads nor writes values"):
        UPDATE.without("values")


def test_a_put_of_other_fields_than_declared_is_refused() -> None:
    with pytest.raises(TransferError, match="it declared"):
        ROLLOUT.check_writes(WRITES)
    ROLLOUT.check_writes((*WRITES, "reward_components"))


def test_every_field_that_a_stage_names_is_described_and_written_by_one() -> None:
    named = {name for stage in STAGES for name in (*stage.reads, *stage.writes)}
    assert named == set(FIELDS)
    assert {name for stage in STAGES for name in stage.writes} == set(FIELDS)
