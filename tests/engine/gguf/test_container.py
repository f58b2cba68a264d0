"""Tests of GGUF files: valid ones are read as specified; all others are refused with a message."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.gguf.container import GgufFile, Numbers
from engine.gguf.tensor_types import TensorType
from tests.engine.gguf.builders import As, StoredTensor, Written, f32, string

METADATA = {
    "general.architecture": "llama",
    "a.u8": As("u8", 255),
    "a.i8": As("i8", -128),
    "a.u16": As("u16", 65535),
    "a.i16": As("i16", -32768),
    "a.u32": As("u32", 2**32 - 1),
    "a.i32": As("i32", -(2**31)),
    "a.u64": As("u64", 2**64 - 1),
    "a.i64": As("i64", -(2**63)),
    "a.f32": As("f32", 0.5),
    "a.f64": As("f64", 0.1),
    "a.bool": True,
    "a.text": "größer ▁ 漢",
    "a.texts": ["", "Ġthe", "漢"],
    "a.numbers": [As("i32", -1), As("i32", 7)],
    "a.floats": [0.25, -1.0],
    "a.flags": [True, False],
    "a.nothing": [],
}


def whole() -> Written:
    tensors = {
        "one": f32((2, 3), [1, 2, 3, 4, 5, 6]),
        "two": StoredTensor(kind="Q8_0", shape=(1, 64), data=bytes(range(68))),
        "three": StoredTensor(kind="BF16", shape=(5,), data=bytes(range(10))),
    }
    return Written(metadata=dict(METADATA), tensors=tensors)


def refusal(path: Path, kind: type[ModelLoadError] = ModelLoadError) -> str:
    with pytest.raises(ModelLoadError) as caught:
        GgufFile(path)
    assert type(caught.value) is kind
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_of_every_type_comes_out_as_it_was_written(version: int, tmp_path: Path) -> None:
    written = whole()
    written.version = version
    given = {key: value.value if isinstance(value, As) else value for key, value in METADATA.items()}
    metadata = GgufFile(written.to(tmp_path / "x.gguf")).metadata
    read = {key: value.tolist() if isinstance(value, Numbers) else value for key, value in metadata.items()}
    assert read == {**given, "a.numbers": [-1, 7]}
    assert all(type(read[key]) is type(value) for key, value in given.items())


@pytest.mark.parametrize(("kind", "size"), [(0, 1), (6, 4), (7, 1), (10, 8)])
def test_a_long_array_of_numbers_stays_in_the_map(kind: int, size: int, tmp_path: Path) -> None:
    path, count = tmp_path / "x.gguf", 2**20
    pair = string("k") + struct.pack("<IIQ", 9, kind, count) + b"\1" * (count * size)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    tracemalloc.start()
    try:
        value = GgufFile(path).metadata["k"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(value, Numbers)
    assert len(value) == count
    assert peak < 2**22  # a list of them takes twice that at least


@pytest.mark.parametrize("alignment", [None, 8, 64])
def test_tensors_have_torchs_shape_and_the_bytes_that_were_written(alignment: int | None, tmp_path: Path) -> None:
    written = whole()
    if alignment is not None:
        written.metadata["general.alignment"] = written.alignment = alignment
    file = GgufFile(written.to(tmp_path / "x.gguf"))
    assert {name: (info.kind, info.shape) for name, info in file.tensors.items()} == {
        "one": (TensorType.F32, (2, 3)),
        "two": (TensorType.Q8_0, (1, 64)),
        "three": (TensorType.BF16, (5,)),
    }
    assert {name: file.stored(name).tobytes() for name in file.tensors} == {
        name: tensor.data for name, tensor in written.tensors.items()
    }


def test_a_file_that_ends_anywhere_too_early_is_refused(tmp_path: Path) -> None:
    data, path = whole().bytes(), tmp_path / "x.gguf"
    for size in range(len(data) - 22):  # padding behind the last tensor's 10 bytes
        path.write_bytes(data[:size])
        assert "byte" in refusal(path) or size == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: setattr(w, "magic", b"GGML"), "begins with b'GGML'"),
        (lambda w: setattr(w, "num_tensors", 4), "has 0 dimensions"),
        (lambda w: setattr(w, "num_tensors", 2**63), f"tensors is {2**63}"),
        (lambda w: setattr(w, "num_pairs", 2**64 - 1), f"keys is {2**64 - 1}"),
        (lambda w: w.metadata.update({"general.alignment": 0}), "general.alignment 0; it must be a power of two"),
        (lambda w: w.metadata.update({"general.alignment": 24}), "general.alignment 24"),
        (lambda w: w.metadata.update({"general.alignment": "x"}), "general.alignment 'x'"),
        (lambda w: setattr(w.tensors["two"], "shape", (2, 16)), "rows of 16 values; Q8_0 has blocks of 32"),
        (lambda w: setattr(w.tensors["two"], "shape", (2**40, 2**60)), "tensor two has the bytes"),
        (lambda w: setattr(w.tensors["one"], "shape", (0, 3)), r"tensor one has no values"),
        (lambda w: setattr(w.tensors["one"], "shape", (1, 1, 1, 2, 3)), "has 5 dimensions"),
        (lambda w: setattr(w.tensors["one"], "shape", ()), "has 0 dimensions"),
        (lambda w: setattr(w.tensors["one"], "number", 99), "tensor one has the type 99"),
        (lambda w: setattr(w.tensors["two"], "offset", 2**62), "tensor two has the bytes"),
        (lambda w: setattr(w.tensors["two"], "offset", 33), "offset 33, which is no multiple of 32"),
        (lambda w: setattr(w.tensors["two"], "offset", 0), "the tensors one and two have bytes in common"),
    ],
)
def test_what_a_file_says_wrongly_of_itself_is_named(
    change: Callable[[Written], object], said: str, tmp_path: Path
) -> None:
    written = whole()
    change(written)
    assert said in refusal(written.to(tmp_path / "x.gguf"))


@pytest.mark.parametrize(
    ("pair", "said"),
    [
        (string("k") + struct.pack("<IB", 7, 2), "k has a bool that is neither 0 nor 1"),
        (string("k") + struct.pack("<I", 13), "k has the type 13"),
        (string("k") + struct.pack("<IIQ", 9, 9, 1), "k is an array of arrays"),
        (string("k") + struct.pack("<IIQ", 9, 99, 1), "k has the type 99"),
        (string("k") + struct.pack("<IIQ", 9, 8, 2**62), f"k is {2**62}"),
        (string("k") + struct.pack("<IIQ", 9, 6, 2**62), f"k is {2**62}"),
        (string("k") + struct.pack("<IQ", 8, 2**63), "inside k"),
        (string("k") + struct.pack("<IQ", 8, 2) + b"\xff\xfe", "k is no UTF-8"),
        (2 * (string("k") + struct.pack("<IB", 0, 2)), "has k twice"),
    ],
)
def test_a_damaged_pair_of_the_metadata_is_named(pair: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair + bytes(64))
    assert said in refusal(path)


def test_a_tensor_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    data = Written(tensors={"one": f32((1,), [0]), "two": f32((1,), [1])}).bytes()
    path = tmp_path / "x.gguf"
    path.write_bytes(data.replace(b"two", b"one"))
    assert "has the tensor one twice" in refusal(path)


@pytest.mark.parametrize(
    ("version", "said"),
    [(1, "has version 1 of GGUF"), (4, "has version 4 of GGUF"), (3 << 24, "is big-endian")],
)
def test_other_versions_are_refused_by_name(version: int, said: str, tmp_path: Path) -> None:
    written = whole()
    written.version = version
    assert said in refusal(written.to(tmp_path / "x.gguf"), UnsupportedModelError)


@pytest.mark.parametrize("kind", ["Q2_K", "IQ4_XS", "F64", "TQ1_0", "NVFP4", "Q1_0", "Q2_0"])
def test_a_type_that_is_not_read_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    written = whole()
    written.tensors["one"].kind = kind
    said = refusal(written.to(tmp_path / "x.gguf"), UnsupportedModelError)
    assert f"tensor one is {kind}; the engine reads F32, F16, BF16, Q8_0" in said


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda _: None], ids=["folder", "empty", "missing"])
def test_what_is_no_file_with_bytes_is_refused(make: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    make(path)
    assert "cannot be read as GGUF" in refusal(path)


def test_random_damage_is_refused_or_read_and_takes_little_memory(tmp_path: Path) -> None:
    data, path, numbers = whole().bytes(), tmp_path / "x.gguf", random.Random(7)
    num_refused = 0
    tracemalloc.start()
    try:
        for _ in range(600):
            damaged = bytearray(data)
            for _ in range(numbers.randint(1, 4)):
                damaged[numbers.randrange(len(data))] = numbers.choice([0, 1, 127, 128, 255, numbers.randrange(256)])
            path.write_bytes(damaged)
            try:
                file = GgufFile(path)
            except ModelLoadError:
                num_refused += 1
            else:
                assert all(len(file.stored(name)) == info.num_bytes for name, info in file.tensors.items())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_refused > 100
    assert peak < 32 * 2**20  # what other threads of this process allocate meanwhile counts too
