"""Memory without a name that processes of one user on one host share: a sealed memfd and its pages, freed by the kernel after any kill."""

import ctypes
import fcntl
import functools
import mmap
import os
import stat
import weakref
from collections.abc import Callable
from typing import Any, Self, TypeAlias

from asyncrl.errors import WireError
from asyncrl.runtime.host import handle_of, reopened
from asyncrl.runtime.shapes import Buffer

SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""A file with these keeps its size for ever: no access to its pages can end in SIGBUS."""
BLOCK = 512
"""The unit of ``st_blocks``."""

Span: TypeAlias = tuple[int, int]
"""Where a buffer lies in this process, and its bytes."""

_LIBRARY = ctypes.CDLL(None, use_errno=True)
# Called this way, and not through the mmap module, they let other threads run, and keep no second descriptor.
_MMAP, _MUNMAP = _LIBRARY.mmap, _LIBRARY.munmap
_MMAP.restype = ctypes.c_void_p
_MMAP.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_MUNMAP.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class Pages:
    """A memory file mapped into this process, writable; unmapped when neither this nor any view of it is left."""

    __slots__ = ("__weakref__", "address", "size")

    def __init__(self, descriptor: int, size: int, *, present: bool) -> None:
        """``present``: the pages are there at once, else each costs a fault at its first touch. Raises OSError."""
        flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if present else 0)
        address = _MMAP(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor, 0)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), f"cannot map {size} bytes")
        self.address, self.size = address, size
        weakref.finalize(self, _MUNMAP, address, size).atexit = False

    def view(self) -> memoryview:
        """All bytes. Every call gives a view of its own, whose end ``watch`` can tell apart."""
        exporter: Any = _bytes_type(self.size).from_address(self.address)
        exporter.pages = self
        return memoryview(exporter).cast("B")

    def offset_of(self, span: Span) -> int | None:
        """Where a buffer lies in these pages, None when not all of it does."""
        address, size = span
        inside = self.address <= address and address + size <= self.address + self.size
        return address - self.address if inside else None


def watch(view: memoryview, ended: Callable[[], None]) -> weakref.ref[Any]:
    """Has ``ended`` called, on any thread and at any moment, when ``view`` and everything made from it is gone: slices,
    casts, arrays, tensors. ``view`` is one of ``Pages.view``. Forgotten when the result is dropped; it refers to what lives."""
    return weakref.ref(view.obj, lambda _: ended())


@functools.cache
def _bytes_type(size: int) -> type[ctypes.Array[ctypes.c_ubyte]]:
    return ctypes.c_ubyte * size


class MemoryFile:
    """A sealed file of ``size`` bytes that exists in memory only. ``inode`` tells it from any other that lives."""

    __slots__ = ("__weakref__", "_close", "descriptor", "inode", "pages", "size")

    def __init__(self, descriptor: int, inode: int, pages: Pages) -> None:
        self.descriptor, self.inode, self.pages, self.size = descriptor, inode, pages, pages.size
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False

    @classmethod
    def create(cls, size: int) -> Self:
        """A new one, every page of it present. Takes about a second for a gigabyte. Raises OSError when memory or descriptors are out."""
        descriptor = os.memfd_create("asyncrl", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, size)
            # This can fail where memory is out; a first touch could only kill.
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
            return cls(descriptor, os.fstat(descriptor).st_ino, Pages(descriptor, size, present=True))
        except OSError:
            os.close(descriptor)
            raise

    def close(self) -> None:
        """Nobody can open it any more; the pages go with the last view, here and elsewhere."""
        self._close()


def open_descriptor(process: int, descriptor: int, inode: int, size: int) -> int:
    """A descriptor of our own for a memory file of another process, which may lie about it.

    Raises ProcessLookupError when the process or its descriptor is gone, PermissionError when the kernel says so, WireError
    unless it is a memory file with this inode and this size, sealed so that it stays so.
    """
    what = f"descriptor {descriptor} of process {process}"
    try:
        handle = handle_of(process, descriptor)
    except FileNotFoundError as error:
        raise ProcessLookupError(error.errno, f"{what} is gone") from error
    try:
        seen = os.fstat(handle)
        # Devices and pipes must not even be opened.
        if not stat.S_ISREG(seen.st_mode) or seen.st_dev != _device():
            raise WireError(f"{what} is no memory file")
        if (seen.st_ino, seen.st_size) != (inode, size):
            raise WireError(f"{what} has inode {seen.st_ino} and {seen.st_size} bytes, inode {inode} and {size} bytes were announced")
        # A page that is missing is made at its first touch, which kills where memory is out.
        if seen.st_blocks * BLOCK < size:
            raise WireError(f"{what} has {size} bytes, and memory for {seen.st_blocks * BLOCK} of them")
        opened = reopened(handle)
    finally:
        os.close(handle)
    seals = fcntl.fcntl(opened, fcntl.F_GET_SEALS)
    if seals & SEALS != SEALS or os.fstat(opened).st_size != size:
        os.close(opened)
        raise WireError(f"{what} can change its size: its seals are {seals:#x}, at least {SEALS:#x} are needed")
    return opened


def first_bytes(descriptor: int, size: int) -> bytes:
    """The first ``size`` bytes of a file, fewer where it has fewer. Raises OSError."""
    return os.pread(descriptor, size, 0)


@functools.cache
def _device() -> int:
    """The device number that all memory files have in common."""
    descriptor = os.memfd_create("asyncrl", os.MFD_CLOEXEC)
    try:
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


class _BufferStruct(ctypes.Structure):
    """``Py_buffer`` of the stable ABI."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_GET_BUFFER, _RELEASE_BUFFER = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
_GET_BUFFER.argtypes = (ctypes.py_object, ctypes.POINTER(_BufferStruct), ctypes.c_int)
_RELEASE_BUFFER.argtypes = (ctypes.POINTER(_BufferStruct),)
_RELEASE_BUFFER.restype = None


def span_of(buffer: Buffer) -> Span:
    """Where a contiguous buffer lies. Raises BufferError or TypeError for anything else."""
    found = _BufferStruct()
    _GET_BUFFER(buffer, ctypes.byref(found), 0)
    try:
        return found.buf or 0, found.len
    finally:
        _RELEASE_BUFFER(ctypes.byref(found))
