"""Nothing is collected while lasting objects come, and no collection looks at them later."""

import gc

import pytest

from asyncrl.launch.lasting import lasting


class Kept:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.own = self


def test_what_a_block_made_is_no_collections_business() -> None:
    before = gc.get_freeze_count()
    with lasting():
        assert not gc.isenabled()
        made = [Kept() for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= before + len(made)
    looked_at = {id(each) for each in gc.get_objects()}
    assert not any(id(each) in looked_at for each in made)


def test_a_block_that_fails_leaves_the_collector_on() -> None:
    with pytest.raises(ImportError), lasting():
        raise ImportError("no torch")
    assert gc.isenabled()
