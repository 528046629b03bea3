"""What every storage folder promises: the same tests over a disk and over memory."""

from pathlib import Path

import pytest

from asyncrl.runtime.files import DiskFolder, StorageFolder
from asyncrl.runtime.simulated_files import MemoryFolder


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> StorageFolder:
    return DiskFolder(str(tmp_path / "store")) if request.param == "disk" else MemoryFolder("/store", {}, lambda: False)


def written(folder: StorageFolder, name: str, *buffers: bytes) -> int:
    descriptor = folder.create(name)
    assert folder.write(descriptor, buffers) == sum(map(len, buffers))
    return descriptor


def test_what_was_written_is_read_in_order(folder: StorageFolder) -> None:
    descriptor = written(folder, "b", b"one", b"two", b"")
    folder.write(descriptor, [b"3"] * 3000)
    folder.sync(descriptor)
    folder.close(descriptor)
    written(folder, "a", b"x")
    folder.sync_file("b")
    folder.sync_folder()
    assert folder.names() == ["a", "b"]
    assert bytes(folder.read("b")) == b"onetwo" + b"3" * 3000


def test_a_file_is_made_once(folder: StorageFolder) -> None:
    written(folder, "a", b"x")
    with pytest.raises(FileExistsError):
        folder.create("a")
    with pytest.raises(FileNotFoundError):
        folder.read("b")


def test_what_lies_behind_a_size_is_cut_from_open_and_closed_files(folder: StorageFolder) -> None:
    descriptor = written(folder, "a", b"12345")
    folder.cut(descriptor, 3)
    folder.write(descriptor, [b"x"])
    folder.close(descriptor)
    assert bytes(folder.read("a")) == b"123x"
    folder.truncate("a", 1)
    assert bytes(folder.read("a")) == b"1"


def test_a_rename_replaces_and_a_removal_may_come_twice(folder: StorageFolder) -> None:
    written(folder, "a", b"new")
    written(folder, "b", b"old")
    folder.rename("a", "b")
    assert folder.names() == ["b"]
    assert bytes(folder.read("b")) == b"new"
    folder.remove("b")
    folder.remove("b")
    assert folder.names() == []


def test_inner_folders_keep_their_own_files_and_go_with_the_outer_one(folder: StorageFolder) -> None:
    inner = folder.inner("deep")
    written(inner, "a", b"x")
    assert inner.names() == ["a"]
    folder.clear()
    again = folder.inner("deep")
    assert again.names() == []
