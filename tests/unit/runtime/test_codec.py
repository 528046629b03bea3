"""Values, registered classes and their frames."""

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from asyncrl.errors import WireError
from asyncrl.runtime import ActorAddress, decode, encode, register_codec
from asyncrl.runtime.codec import MAX_FRAMES, Codec
from tests.unit.runtime.runtime_actors import Block, Parcel


def there_and_back(annotation: Any, value: Any) -> Any:
    codec = Codec(annotation)
    data, frames = codec.encode(value)
    return codec.decode(data, [memoryview(frame) for frame in frames])


def plain(block: Block) -> tuple[str, bytes]:
    return block.name, bytes(block.data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(json_values)
@settings(max_examples=60, deadline=None)
def test_plain_values_survive(value: Any) -> None:
    assert there_and_back(Any, value) == value


blocks = st.builds(Block, st.text(max_size=5), st.binary(max_size=50))


@given(st.dictionaries(st.text(max_size=4), blocks, max_size=4), blocks | st.none(), st.lists(blocks, max_size=3))
@settings(max_examples=60, deadline=None)
def test_registered_objects_survive_in_every_container(named: dict[str, Block], first: Block | None, several: list[Block]) -> None:
    back = there_and_back(Parcel, Parcel(named, first, "n"))
    assert {key: plain(block) for key, block in back.blocks.items()} == {key: plain(block) for key, block in named.items()}
    assert (back.first and plain(back.first)) == (first and plain(first))
    assert [plain(b) for b in there_and_back(list[Block], several)] == [plain(b) for b in several]
    pair = there_and_back(tuple[int, list[Block] | None], (3, several))
    assert (pair[0], [plain(b) for b in pair[1]]) == (3, [plain(b) for b in several])
    assert there_and_back(tuple[int, list[Block] | None], (3, None)) == (3, None)
    assert [plain(b) for b in there_and_back(Annotated[tuple[Block, ...], "doc"], tuple(several))] == [plain(b) for b in several]


def test_buffers_are_frames_and_are_not_copied_into_the_message() -> None:
    data = bytes(100_000)
    head, frames = Codec(list[Block]).encode([Block("a", data), Block("b", data)])
    assert len(head) < 30
    assert [frame.nbytes for frame in frames] == [100_000, 100_000]
    assert frames[0].obj is data


def test_frames_of_other_item_types_and_shapes_arrive_as_bytes() -> None:
    words = memoryview(bytearray(16)).cast("I", (2, 2))
    _, frames = Codec(Block).encode(Block("a", words))
    assert (frames[0].nbytes, frames[0].format) == (16, "B")


def test_a_message_that_refers_to_frames_it_does_not_have_is_refused() -> None:
    head, frames = Codec(list[Block]).encode([Block("a", b"1"), Block("b", b"2")])
    with pytest.raises(WireError, match=r"refers to frames 1\.\.2, the message has 1"):
        Codec(list[Block]).decode(head, [memoryview(f) for f in frames[:1]])
    with pytest.raises(WireError, match="refers to frames -1"):
        Codec(Block).decode(msgspec.msgpack.encode((-1, 1, "a")), [memoryview(b"1")])
    with pytest.raises(WireError, match="cannot be rebuilt"):
        Codec(Block).decode(msgspec.msgpack.encode((0, 2, "a")), [memoryview(b"1")] * 2)


def test_too_many_or_scattered_buffers_are_refused_at_the_sender() -> None:
    with pytest.raises(WireError, match=f"at most {MAX_FRAMES}"):
        Codec(list[Block]).encode([Block("a", b"1")] * (MAX_FRAMES + 1))
    with pytest.raises(WireError, match="not contiguous"):
        Codec(Block).encode(Block("a", memoryview(bytes(10))[::2]))
    with pytest.raises(WireError, match="expected Block"):
        Codec(Block).encode("no block")


def test_unknown_fields_types_and_depth_are_wire_errors() -> None:
    with pytest.raises(WireError, match="unknown field"):
        decode(
            ActorAddress, msgspec.msgpack.encode({"process": "p", "endpoint": "e", "actor": "a", "attempt": "", "generation": 0, "x": 1})
        )
    with pytest.raises(WireError):
        decode(int, b"\xa1a")
    with pytest.raises(WireError):
        decode(list[Any], b"\x91" * 100_000)
    with pytest.raises(WireError, match="no wire form"):
        encode([object()])
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(WireError):
        encode(deep)


def test_an_annotation_that_cannot_travel_is_named() -> None:
    with pytest.raises(WireError, match="cannot travel"):
        Codec(Block | list[int])


def test_numbers_of_array_libraries_travel_as_plain_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert there_and_back(list[float], [numpy.float32(0.5), numpy.int64(3)]) == [0.5, 3.0]


def test_tagged_and_renamed_structs_keep_their_form() -> None:
    class Inner(msgspec.Struct, tag="inner", rename="camel", forbid_unknown_fields=True):
        my_block: Block
        other_word: str = "x"

    class Other(msgspec.Struct, tag="other"):
        number: int

    data, frames = Codec(Inner | Other).encode(Inner(Block("b", b"1")))
    assert msgspec.msgpack.decode(data) == {"type": "inner", "myBlock": [0, 1, "b"], "otherWord": "x"}
    back = Codec(Inner | Other).decode(data, [memoryview(f) for f in frames])
    assert (type(back), plain(back.my_block)) == (Inner, ("b", b"1"))
    assert there_and_back(Inner | Other, Other(3)) == Other(3)


def test_only_classes_can_be_registered() -> None:
    with pytest.raises(TypeError, match="needs a class"):
        register_codec("Block", lambda b: (b, []), lambda h, f: h)  # type: ignore[arg-type]
