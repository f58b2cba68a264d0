"""Write GGUF files byte by byte, according to the format's specification."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.gguf.tensor_types import NAMES

NUMBER_OF = {name: number for number, name in NAMES.items()}

_FORMATS = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<B"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}


@dataclass(frozen=True, slots=True)
class As:
    """A value under one of the format's types; without it the type follows from the value."""

    kind: str
    value: Any


@dataclass(slots=True, kw_only=True)
class StoredTensor:
    """A tensor as stored in a file; None values follow from the rest."""

    kind: str
    shape: tuple[int, ...]
    data: bytes
    number: int | None = None
    offset: int | None = None


@dataclass(slots=True, kw_only=True)
class Written:
    """A file before it is written; a test changes what it wants broken."""

    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    magic: bytes = b"GGUF"
    version: int = 3
    num_pairs: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def to(self, path: Path) -> Path:
        path.write_bytes(self.bytes())
        return path

    def bytes(self) -> bytes:
        pairs = b"".join(string(key) + typed(value) for key, value in self.metadata.items())
        table, data = b"", b""
        for name, tensor in self.tensors.items():
            table += string(name) + struct.pack("<I", len(tensor.shape))
            table += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
            table += struct.pack("<I", NUMBER_OF[tensor.kind] if tensor.number is None else tensor.number)
            table += struct.pack("<Q", len(data) if tensor.offset is None else tensor.offset)
            data = padded(data + tensor.data, self.alignment)
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_pairs = len(self.metadata) if self.num_pairs is None else self.num_pairs
        head = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_pairs)
        return padded(head + pairs + table, self.alignment) + data


def padded(data: bytes, alignment: int) -> bytes:
    return data + b"\0" * (-len(data) % alignment)


def string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def typed(value: Any) -> bytes:
    """Return a value after its type."""
    if isinstance(value, As):
        number, form = _FORMATS[value.kind]
        return struct.pack("<I", number) + struct.pack(form, value.value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    if isinstance(value, list):
        entries = [typed(entry) for entry in value] or [typed(0)]
        return struct.pack("<I", 9) + entries[0][:4] + _joined(value, entries)
    if isinstance(value, bool):
        return typed(As("bool", value))
    return typed(As("u32" if isinstance(value, int) else "f32", value))


def _joined(value: Sequence[Any], entries: Sequence[bytes]) -> bytes:
    return struct.pack("<Q", len(value)) + b"".join(entry[4:] for entry in entries[: len(value)])


def f32(shape: tuple[int, ...], values: Sequence[float]) -> StoredTensor:
    return StoredTensor(kind="F32", shape=shape, data=struct.pack(f"<{len(values)}f", *values))


def write(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> Path:
    return Written(metadata=dict(metadata), tensors=dict(tensors)).to(path)
