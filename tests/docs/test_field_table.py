"""The field table: the documentation, the declarations and this written list say the same."""

import pytest

from asyncrl.workers.fields import FIELDS, STAGES, field_table
from tests.docs.generated import TABLES, between, differing
from tests.docs.pages import DOCS

WRITTEN: list[tuple[str, str, str, tuple[str, ...], tuple[str, ...]]] = [
    ("prompts", "int64", "[p]", ("rollout",), ("old_log_prob", "ref_log_prob", "values", "update_critic", "update", "generations")),
    ("responses", "int64", "[r]", ("rollout",), ("old_log_prob", "ref_log_prob", "values", "update_critic", "update", "generations")),
    (
        "response_mask",
        "int64",
        "[r]",
        ("rollout", "rollout_correction"),
        ("old_log_prob", "kl_in_reward", "rollout_correction", "advantages", "token_advantages", "update_critic", "update"),
    ),
    ("rollout_log_probs", "float32", "[r]", ("rollout",), ("old_log_prob", "bypass", "rollout_correction")),
    ("rollout_versions", "int32", "[r]", ("rollout",), ()),
    ("rm_scores", "float32", "[r]", ("rollout",), ("kl_in_reward", "token_advantages")),
    ("reward_extra_info", "json", "object", ("rollout",), ("report",)),
    ("reward_components", "float32", "one a key", ("rollout",), ("components",)),
    ("old_log_probs", "float32", "[r]", ("old_log_prob", "bypass"), ("kl_in_reward", "rollout_correction", "token_advantages", "update")),
    ("sum_pi_squared", "float32", "[r]", ("old_log_prob",), ("token_advantages",)),
    ("ref_log_prob", "float32", "[r]", ("ref_log_prob",), ("kl_in_reward", "update")),
    ("values", "float32", "[r]", ("values",), ("token_advantages", "update_critic")),
    ("token_level_rewards", "float32", "[r]", ("kl_in_reward",), ("token_advantages",)),
    ("rollout_is_weights", "float32", "[r]", ("rollout_correction",), ("token_advantages", "update")),
    ("loss_mask", "int64", "[r]", ("rollout_correction",), ("update_critic", "update")),
    ("advantages", "float32", "[r]", ("advantages", "token_advantages"), ("update",)),
    ("returns", "float32", "[r]", ("advantages", "token_advantages"), ("update_critic",)),
]
"""Name, dtype, shape of a row, writers, readers: written by hand, so that a changed declaration must be meant."""


def test_the_declarations_are_the_written_list() -> None:
    declared = [
        (
            field.name,
            field.dtype,
            field.shape,
            tuple(stage.name for stage in STAGES if field.name in stage.writes),
            tuple(stage.name for stage in STAGES if field.name in stage.reads),
        )
        for field in FIELDS.values()
    ]
    assert declared == WRITTEN


def test_the_page_shows_the_written_list() -> None:
    page = between((DOCS / "a_step_in_detail.md").read_text(encoding="utf-8"), "fields")
    assert page == field_table()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines()[2:]]
    shown = [(name.strip("`"), dtype, shape, writers, readers) for name, dtype, shape, writers, readers, _ in cells]
    assert shown == [
        (name, dtype, shape, ", ".join(writers), ", ".join(readers) or "-") for name, dtype, shape, writers, readers in WRITTEN
    ]


def test_every_stage_reads_only_what_an_earlier_one_wrote() -> None:
    written: dict[str, None] = {}
    for stage in STAGES:
        assert [name for name in stage.reads if name not in written] == [], stage.name
        written |= dict.fromkeys(stage.writes)


@pytest.mark.parametrize("name", TABLES)
def test_generated_tables_are_up_to_date(name: str) -> None:
    page, make = TABLES[name]
    shown = between((DOCS / page).read_text(encoding="utf-8"), name)
    assert shown == make().strip(), f"docs/{page} is out of date: python -m tests.docs.generated"


def test_every_default_that_differs_from_verls_has_a_reason() -> None:
    from tests.docs.generated import REASONS

    assert sorted(differing()) == sorted(REASONS)
