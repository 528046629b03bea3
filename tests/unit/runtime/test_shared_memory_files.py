"""Memory files: what a process may open of another one, and when a view has ended."""

import fcntl
import gc
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from asyncrl.errors import WireError
from asyncrl.runtime.memory_file import SEALS, MemoryFile, Pages, open_descriptor, span_of, watch

SIZE = 65536


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    made = MemoryFile.create(SIZE)
    yield made
    made.close()


def test_a_memory_file_is_there_in_whole_and_can_never_change_its_size(file: MemoryFile) -> None:
    seen = os.fstat(file.descriptor)
    assert (seen.st_size, seen.st_blocks * 512) == (SIZE, SIZE)
    for size in (0, 2 * SIZE):
        with pytest.raises(PermissionError):
            os.ftruncate(file.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(file.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_what_one_mapping_writes_another_reads(file: MemoryFile) -> None:
    descriptor = open_descriptor(os.getpid(), file.descriptor, file.inode, SIZE)
    other = Pages(descriptor, SIZE, present=False).view()
    os.close(descriptor)
    file.pages.view()[100:105] = b"hello"
    assert bytes(other[99:106]) == b"\0hello\0"
    other[0] = 7
    assert file.pages.view()[0] == 7


def mappings() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:asyncrl")


def test_pages_are_unmapped_with_the_last_view_though_the_file_was_closed_long_ago() -> None:
    gc.collect()
    before = mappings()
    file = MemoryFile.create(SIZE)
    view = file.pages.view()[10:20]
    file.close()
    file.close()
    del file
    view[:] = b"0123456789"
    assert (mappings(), bytes(view)) == (before + 1, b"0123456789")
    del view
    assert mappings() == before


def test_a_view_has_ended_when_nothing_made_from_it_is_left(file: MemoryFile) -> None:
    ended: list[str] = []
    view = file.pages.view()
    keep = watch(view, lambda: ended.append("first"))
    other = file.pages.view()
    keep_other = watch(other, lambda: ended.append("other"))
    array = np.frombuffer(view[64:128], np.float32)
    part = array.reshape(4, 4)[1:3, 2]
    casted = view.cast("I")
    del view, array
    assert ended == []
    del casted
    assert ended == []
    part += 1
    del part
    assert ended == ["first"]
    del other
    assert ended == ["first", "other"]
    assert keep() is None
    assert keep_other() is None


def test_the_end_of_a_view_is_told_on_the_thread_where_it_comes(file: MemoryFile) -> None:
    threads: list[int] = []
    held = [file.pages.view()]
    keep = watch(held[0], lambda: threads.append(threading.get_ident()))
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert threads == [thread.ident]
    assert keep() is None


def test_a_view_that_is_watched_no_longer_ends_in_silence(file: MemoryFile) -> None:
    ended: list[str] = []
    view = file.pages.view()
    keep = watch(view, lambda: ended.append("told"))
    del keep, view
    assert ended == []


def test_where_a_buffer_lies_is_found_whatever_it_is(file: MemoryFile) -> None:
    view = file.pages.view()
    array = np.frombuffer(view, np.int16)[8:12]
    assert file.pages.offset_of(span_of(array)) == 16
    assert file.pages.offset_of(span_of(view[SIZE - 1 :].toreadonly())) == SIZE - 1
    assert file.pages.offset_of(span_of(bytearray(4))) is None
    address, size = span_of(view)
    assert file.pages.offset_of((address + 1, size)) is None
    with pytest.raises(TypeError):
        span_of("text")


def unsealed(seals: int, size: int = SIZE, there: int = SIZE) -> int:
    descriptor = os.memfd_create("liar", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if there:
        os.posix_fallocate(descriptor, 0, there)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def regular_file(folder: Path) -> int:
    (folder / "file").write_bytes(bytes(SIZE))
    return os.open(folder / "file", os.O_RDWR)


LIES: dict[str, tuple[Callable[[Path], int | tuple[int, int]], str]] = {
    "a regular file": (regular_file, "no memory file"),
    "a device": (lambda _: os.open("/dev/zero", os.O_RDWR), "no memory file"),
    "a pipe": (lambda _: os.pipe(), "no memory file"),
    "a memory file that may shrink": (lambda _: unsealed(fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL), "can change its size"),
    "a memory file that may grow": (lambda _: unsealed(fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL), "can change its size"),
    "a memory file without seals": (lambda _: unsealed(0), "can change its size"),
    "a longer memory file": (lambda _: unsealed(SEALS, 2 * SIZE, 2 * SIZE), "bytes were announced"),
    "a shorter memory file": (lambda _: unsealed(SEALS, SIZE - 4096, SIZE - 4096), "bytes were announced"),
    "a memory file with holes": (lambda _: unsealed(SEALS, there=4096), "memory for 4096 of them"),
}


def test_whoever_announces_something_else_is_refused_before_it_is_mapped(tmp_path: Path) -> None:
    for lie, (make, words) in LIES.items():
        made = make(tmp_path)
        descriptors = made if isinstance(made, tuple) else (made,)
        with ExitStack() as stack:
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
            with pytest.raises(WireError) as caught:
                open_descriptor(os.getpid(), descriptors[0], os.fstat(descriptors[0]).st_ino, SIZE)
        assert words in str(caught.value), lie


def test_another_file_than_the_one_that_was_announced_is_refused(file: MemoryFile) -> None:
    with pytest.raises(WireError, match=f"has inode {file.inode}"):
        open_descriptor(os.getpid(), file.descriptor, file.inode + 1, SIZE)


def test_what_is_gone_is_told_apart_from_a_lie(file: MemoryFile) -> None:
    with pytest.raises(ProcessLookupError):
        open_descriptor(os.getpid(), 4000, file.inode, SIZE)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
        with pytest.raises(ProcessLookupError):
            open_descriptor(ended.pid, file.descriptor, file.inode, SIZE)


def test_a_file_that_cannot_be_made_leaves_nothing() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            MemoryFile.create(SIZE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_pages_that_are_mapped_at_once_are_there(file: MemoryFile) -> None:
    mapping = Path("/proc/self/smaps").read_text().split(f"{file.pages.address:x}-")[1]
    assert int(mapping.split("Rss:")[1].split()[0]) * 1024 == SIZE
