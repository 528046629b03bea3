"""Weights as one run of bytes in buckets: nothing is lost, moved or misread, whatever the shapes and sizes."""

import msgspec
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from asyncrl.errors import WeightSyncError
from asyncrl.weight_sync.broadcast import BroadcastSync
from asyncrl.weight_sync.digest import digest
from asyncrl.weight_sync.image import ALIGNMENT, DTYPES, Manifest, Piece, pack

SHAPES = st.lists(st.integers(0, 5), max_size=3)
KINDS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.float64])


@st.composite
def weights(draw: st.DrawFn) -> list[tuple[str, Tensor]]:
    """Tensors of random bits, some of them not contiguous."""
    found = []
    for number, (shape, kind) in enumerate(draw(st.lists(st.tuples(SHAPES, KINDS), max_size=6))):
        size = torch.Size(shape).numel() * kind.itemsize
        tensor = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(number)).view(kind).view(shape)
        found.append((f"w{number}", tensor.t() if tensor.ndim == 2 else tensor))
    return found


def bits(tensor: Tensor) -> bytes:
    """The bytes of a tensor in row-major order, by way of numpy."""
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


@settings(max_examples=60, deadline=None)
@given(weights(), st.integers(1, 70))
def test_what_is_put_together_from_buckets_is_what_was_packed(sent: list[tuple[str, Tensor]], bucket: int) -> None:
    image = pack(3, sent, bucket)
    manifest = msgspec.msgpack.decode(msgspec.msgpack.encode(image.manifest), type=Manifest)
    manifest.check()
    buckets = manifest.buckets()
    assert all(0 < part.stop - part.start <= bucket for part in buckets)
    assert [part.start for part in buckets] == list(range(0, manifest.size, bucket))
    assert [part.stop for part in buckets] == [min(part.start + bucket, manifest.size) for part in buckets]
    arrived = torch.full((manifest.size,), 170, dtype=torch.uint8)
    for part in buckets:
        arrived[part] = image.run[part]
    received = manifest.tensors(arrived)
    assert [(name, tensor.dtype, tensor.shape, bits(tensor)) for name, tensor in received] == [
        (name, tensor.dtype, tensor.shape, bits(tensor)) for name, tensor in sent
    ]
    assert digest(received) == digest(sent) == manifest.digest
    assert manifest.version == 3


def test_a_tensor_may_span_buckets_and_a_bucket_may_hold_several() -> None:
    image = pack(0, [("a", torch.arange(3, dtype=torch.uint8)), ("b", torch.arange(5.0)), ("c", torch.ones(1))], 24)
    assert [piece.offset for piece in image.manifest.pieces] == [0, 16, 48]
    assert [(part.start, part.stop) for part in image.manifest.buckets()] == [(0, 24), (24, 48), (48, 52)]


def manifest_of(*pieces: Piece, size: int = 64, bucket: int = 8, version: int = 0) -> Manifest:
    return Manifest(version=version, pieces=list(pieces), size=size, bucket=bucket, digest="")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (manifest_of(Piece("a", "float32", [4], 0), Piece("b", "float32", [4], 0)), "b at byte 0"),
        (manifest_of(Piece("a", "float32", [4], 0), Piece("a", "float32", [4], 16)), "a at byte 16 comes twice"),
        (manifest_of(Piece("a", "float32", [4], ALIGNMENT // 2)), "a at byte 8"),
        (manifest_of(Piece("a", "object", [4], 0)), "a is said to be object"),
        (manifest_of(Piece("a", "float32", [-4], 0)), "of shape"),
        (manifest_of(Piece("a", "float32", [17], 0)), "tensors of 68 bytes in a run of 64"),
        (manifest_of(bucket=0), "in buckets of 0"),
        (manifest_of(version=-1), "version -1"),
    ],
)
def test_a_manifest_that_cannot_be_is_refused(wrong: Manifest, words: str) -> None:
    with pytest.raises(WeightSyncError, match=words):
        wrong.check()


def test_a_type_that_does_not_travel_is_named() -> None:
    with pytest.raises(WeightSyncError, match="w is complex64"):
        pack(0, [("w", torch.zeros(2, dtype=torch.complex64))], 8)
    assert "float32" in DTYPES


def test_a_published_version_stays_until_its_readers_have_finished_and_memory_is_used_again() -> None:
    sync = BroadcastSync(8)
    with pytest.raises(WeightSyncError, match="no version has been published"):
        sync.borrow()
    names = [sync.publish(version, [("w", torch.full((4,), float(version)))]) for version in (0, 1)]
    first = sync.borrow()
    assert (first.manifest.version, first.manifest.digest) == (1, names[1])
    sync.publish(2, [("w", torch.full((4,), 2.0))])
    sync.publish(3, [("w", torch.full((4,), 3.0))])
    assert first.manifest.tensors(first.run)[0][1].tolist() == [1.0] * 4, "it was overwritten under its reader"
    sync.give_back(first)
    runs = []
    for version in (4, 5, 6, 7):
        sync.publish(version, [("w", torch.full((4,), float(version)))])
        image = sync.borrow()
        runs.append(image.run.data_ptr())
        sync.give_back(image)
    assert runs[:2] == runs[2:], "two pieces of memory take turns"


def test_a_rank_that_sends_to_nobody_keeps_nothing_and_gives_the_same_digest() -> None:
    named = [("w", torch.randn(6))]
    keeper, other = BroadcastSync(8, dtype=torch.bfloat16), BroadcastSync(8, dtype=torch.bfloat16, keep=False)
    assert keeper.publish(1, named) == other.publish(1, named) == digest([("w", named[0][1].bfloat16())])
    with pytest.raises(WeightSyncError):
        other.borrow()
