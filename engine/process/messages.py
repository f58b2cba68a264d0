"""The messages between a worker and its engine process: msgspec tagged unions, msgpack on the wire.

Values only; parent.py and outbox.py send them. This is the one file of the engine that needs msgspec.
"""

from __future__ import annotations

from array import array

import msgspec

from engine.config import EngineConfig
from engine.loop.intake import EngineInfo
from engine.outputs import FinishReason, TokenDelta, TokenLogprobs
from engine.scheduling.decisions import Decision
from engine.scheduling.request import NewRequest
from engine.stats import EngineStats

__all__ = [
    "Abort",
    "AbortChildren",
    "Add",
    "Configure",
    "Decision",
    "DecodeError",
    "EngineInfo",
    "EngineStats",
    "Fatal",
    "FinishReason",
    "FromEngine",
    "Progress",
    "Ready",
    "ToEngine",
    "TokenDelta",
    "TokenLogprobs",
    "decode_from_engine",
    "decode_to_engine",
    "encode",
]


class Configure(msgspec.Struct, frozen=True, tag=True):
    """Tell a new process what to load; always the first message."""

    config: EngineConfig


class Add(msgspec.Struct, frozen=True, tag=True):
    """Hand requests over."""

    requests: tuple[NewRequest, ...]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End requests at once; unknown or finished ones are passed over."""

    request_ids: list[int]


class AbortChildren(msgspec.Struct, frozen=True, tag=True):
    """End single children, (request id, index) each; unknown or finished ones are passed over."""

    children: list[tuple[int, int]]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """Say that the model is loaded and warm."""

    info: EngineInfo


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Report one step, or (with no outputs) that the engine is alive."""

    outputs: list[TokenDelta]
    stats: EngineStats
    step: int
    decisions: list[Decision] = []
    """Since the last report, where `EngineConfig.report_decisions` asks for them."""
    running_ids: list[int] | None = None
    """Requests with a sequence that has a seat; None where the last list still stands for a moment."""


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """Give the reason, in one sentence, before the process ends."""

    message: str


DecodeError = msgspec.DecodeError
"""What decoding raises on a message that is none, or that has a field of the wrong type."""

ToEngine = Configure | Add | Abort | AbortChildren
FromEngine = Ready | Progress | Fatal


def _as_list(value: object) -> list[int]:
    """Return what msgpack knows of a prompt that is kept as an array. Raises TypeError for anything else."""
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be sent")


_encoder = msgspec.msgpack.Encoder(enc_hook=_as_list)
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_from_engine = msgspec.msgpack.Decoder(FromEngine)


def encode(message: ToEngine | FromEngine) -> bytes:
    """Return the message as bytes."""
    return _encoder.encode(message)


def decode_to_engine(payload: bytes) -> ToEngine:
    """Read a message that the worker sent."""
    return _to_engine.decode(payload)


def decode_from_engine(payload: bytes) -> FromEngine:
    """Read a message that the engine process sent."""
    return _from_engine.decode(payload)
