"""Read the container of a GGUF file: its metadata, and the locations of its tensors. The weights stay memory-mapped.

The format is that of ggml's docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.gguf.tensor_types import BLOCK_SIZES, NAMES, TensorType

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 10: "<Q", 11: "<q", 12: "<d"}
"""Formats of the numeric metadata types, the same for `struct` and numpy."""

_LEAST_PAIR_BYTES = 8 + 4 + 1  # the length of a key, a type, one byte of value
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # the length of a name, number of dimensions, one of them, type, offset


def is_gguf(path: Path) -> bool:
    """Tell by its name whether a model is a GGUF file, whether or not it exists."""
    return path.suffix.lower() == ".gguf"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of a file."""

    kind: TensorType
    shape: tuple[int, ...]
    """In torch's order: the values of the last dimension are contiguous."""
    start: int
    """Offset in bytes from the file's beginning."""
    num_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Numbers:
    """An array of the metadata's numbers or bools, which stays mapped until it is read."""

    array: npt.NDArray[Any]
    """[entries], read-only."""

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> bool | int | float:
        entry: bool | int | float = self.array[index].item()
        return entry

    def is_alike(self) -> bool:
        """Tell whether all entries are equal."""
        return bool((self.array == self.array[:1]).all())

    def tolist(self) -> list[Any]:
        """Return the entries as Python objects, of 8 to 32 bytes each."""
        return self.array.tolist()


Value = bool | int | float | str | list[str] | Numbers
"""A value of the metadata; a list is an array of texts."""


class GgufFile:
    """An open file: `metadata` by key, `tensors` by name. Threads may share it.

    Raises ModelLoadError if the file is damaged or no GGUF, UnsupportedModelError for unsupported content.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = _mapped(path)
        cursor = _Cursor(self._bytes, path)
        num_tensors = _read_head(cursor)
        self.metadata = _read_metadata(cursor)
        self.tensors = _read_tensors(cursor, num_tensors, alignment=_alignment(self.metadata, path))

    def stored(self, name: str) -> npt.NDArray[np.uint8]:
        """Return the mapped bytes of a tensor, read-only."""
        info = self.tensors[name]
        return np.frombuffer(self._bytes, np.uint8, info.num_bytes, info.start)

    def release(self, name: str) -> None:
        """Take a tensor's pages out of this process's memory; they are mapped again when they are read."""
        if hasattr(self._bytes, "madvise") and hasattr(mmap, "MADV_DONTNEED"):
            info = self.tensors[name]
            start = info.start // mmap.PAGESIZE * mmap.PAGESIZE
            self._bytes.madvise(mmap.MADV_DONTNEED, start, info.start + info.num_bytes - start)


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: mmap's, of an empty file
        raise ModelLoadError(f"{path} cannot be read as GGUF: {error}.") from error


class _Cursor:
    """Reads a file from its beginning.

    A count that exceeds the remaining bytes is refused before anything is allocated for it. Arrays of numbers stay
    mapped; texts and tables become Python objects, which take a few times their bytes.
    """

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self._data = data
        self.size = len(data)
        self.path = path
        self.at = 0

    def number(self, form: str, what: str) -> Any:
        at = self._advance(struct.calcsize(form), what)
        return struct.unpack_from(form, self._data, at)[0]

    def numbers(self, form: str, count: int, what: str) -> npt.NDArray[Any]:
        at = self._advance(count * struct.calcsize(form), what)
        return np.frombuffer(self._data, form, count, at)

    def string(self, what: str) -> str:
        size = self.number("<Q", what)
        at = self._advance(size, what)
        try:
            return self._data[at : at + size].decode()
        except UnicodeDecodeError as error:
            raise self.damaged(f"{what} is no UTF-8 ({error})") from None

    def count(self, least_bytes: int, what: str) -> int:
        """Read a count of items, each of which takes at least this many bytes."""
        count: int = self.number("<Q", what)
        self.check_count(count, least_bytes, what)
        return count

    def check_count(self, count: int, least_bytes: int, what: str) -> None:
        if count * least_bytes > self.size - self.at:
            raise self.damaged(f"the count of {what} is {count}, for which {self.size - self.at} bytes are too few")

    def damaged(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path} is no GGUF file that can be read: {reason}. Fetch or convert it again.")

    def _advance(self, size: int, what: str) -> int:
        if size > self.size - self.at:
            raise self.damaged(f"it ends at byte {self.size}, inside {what}")
        at = self.at
        self.at += size
        return at


def _read_head(cursor: _Cursor) -> int:
    """Read magic and version; return the number of tensors."""
    magic = bytes(cursor.numbers("<B", 4, "the magic bytes"))
    if magic != _MAGIC:
        raise cursor.damaged(f"it begins with {magic!r} and not with {_MAGIC!r}")
    version = cursor.number("<I", "the version")
    if version not in _VERSIONS:
        is_big = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
        problem = "is big-endian" if is_big else f"has version {version} of GGUF"
        raise UnsupportedModelError(
            f"{cursor.path} {problem}; little-endian files of versions {' and '.join(map(str, _VERSIONS))} are read. "
            "Convert the model again."
        )
    num_tensors: int = cursor.number("<Q", "the number of tensors")
    return num_tensors


def _read_metadata(cursor: _Cursor) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for _ in range(cursor.count(_LEAST_PAIR_BYTES, "the metadata's keys")):
        key = cursor.string("a key of the metadata")
        if key in metadata:
            raise cursor.damaged(f"its metadata has {key} twice")
        metadata[key] = _read_value(cursor, cursor.number("<I", key), key)
    return metadata


def _read_value(cursor: _Cursor, kind: int, key: str) -> Value:
    if kind == _ARRAY:
        return _read_array(cursor, cursor.number("<I", key), key)
    if kind == _STRING:
        return cursor.string(key)
    return bool(_bools(cursor, 1, key)[0]) if kind == _BOOL else _read_number(cursor, kind, key)


def _read_number(cursor: _Cursor, kind: int, key: str) -> int | float:
    number: int | float = cursor.number(_number_form(cursor, kind, key), key)
    return number


def _read_array(cursor: _Cursor, kind: int, key: str) -> list[str] | Numbers:
    what = f"the entries of {key}"
    if kind == _STRING:
        return [cursor.string(key) for _ in range(cursor.count(8, what))]
    if kind == _BOOL:
        return Numbers(_bools(cursor, cursor.count(1, what), key))
    if kind == _ARRAY:
        raise cursor.damaged(f"{key} is an array of arrays, which the format does not have")
    form = _number_form(cursor, kind, key)
    return Numbers(cursor.numbers(form, cursor.count(struct.calcsize(form), what), key))


def _number_form(cursor: _Cursor, kind: int, key: str) -> str:
    if kind not in _NUMBERS:
        raise cursor.damaged(f"{key} has the type {kind}, which the format does not have")
    return _NUMBERS[kind]


def _bools(cursor: _Cursor, count: int, key: str) -> npt.NDArray[np.bool_]:
    stored = cursor.numbers("<B", count, key)
    if stored.max(initial=0) > 1:
        raise cursor.damaged(f"{key} has a bool that is neither 0 nor 1")
    return stored.view(np.bool_)


def _alignment(metadata: dict[str, Value], path: Path) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ModelLoadError(f"{path} has general.alignment {alignment!r}; it must be a power of two.")
    return alignment


def _read_tensors(cursor: _Cursor, num_tensors: int, *, alignment: int) -> dict[str, TensorInfo]:
    """Read the tensors' locations; their offsets count from the end of this table, aligned."""
    cursor.check_count(num_tensors, _LEAST_TENSOR_BYTES, "the tensors")
    infos: dict[str, TensorInfo] = {}
    for _ in range(num_tensors):
        name = cursor.string("the name of a tensor")
        if name in infos:
            raise cursor.damaged(f"it has the tensor {name} twice")
        infos[name] = _read_tensor(cursor, name)
    start = -(-cursor.at // alignment) * alignment
    placed = {name: _placed(cursor, name, info, start=start, alignment=alignment) for name, info in infos.items()}
    _check_overlap(cursor, placed)
    return placed


def _read_tensor(cursor: _Cursor, name: str) -> TensorInfo:
    """Read one entry of the table; `start` is still the offset."""
    num_dimensions = cursor.number("<I", name)
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise cursor.damaged(f"tensor {name} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible")
    shape = tuple(reversed(cursor.numbers("<Q", num_dimensions, name).tolist()))
    if 0 in shape:
        raise cursor.damaged(f"tensor {name} has no values, its shape is {list(shape)}")
    kind = _tensor_type(cursor, cursor.number("<I", name), name)
    size = BLOCK_SIZES[kind]
    if shape[-1] % size.num_values:
        raise cursor.damaged(f"tensor {name} has rows of {shape[-1]} values; {kind} has blocks of {size.num_values}")
    num_bytes = math.prod(shape) // size.num_values * size.num_bytes
    return TensorInfo(kind=kind, shape=shape, start=cursor.number("<Q", name), num_bytes=num_bytes)


def _tensor_type(cursor: _Cursor, number: int, name: str) -> TensorType:
    kind = NAMES.get(number)
    if kind is None:
        raise cursor.damaged(f"tensor {name} has the type {number}; ggml's types known here end at {max(NAMES)}")
    if kind not in tuple(TensorType):
        raise UnsupportedModelError(
            f"{cursor.path}: tensor {name} is {kind}; the engine reads {', '.join(TensorType)}. Use such a file."
        )
    return TensorType(kind)


def _placed(cursor: _Cursor, name: str, info: TensorInfo, *, start: int, alignment: int) -> TensorInfo:
    if info.start % alignment:
        raise cursor.damaged(f"tensor {name} is at the offset {info.start}, which is no multiple of {alignment}")
    begin = start + info.start
    if begin + info.num_bytes > cursor.size:
        raise cursor.damaged(
            f"it ends at byte {cursor.size}, and tensor {name} has the bytes {begin} to {begin + info.num_bytes - 1}"
        )
    return TensorInfo(kind=info.kind, shape=info.shape, start=begin, num_bytes=info.num_bytes)


def _check_overlap(cursor: _Cursor, tensors: dict[str, TensorInfo]) -> None:
    end, before = 0, ""
    for name, info in sorted(tensors.items(), key=lambda item: item[1].start):
        if info.start < end:
            raise cursor.damaged(f"the tensors {before} and {name} have bytes in common")
        end, before = info.start + info.num_bytes, name
