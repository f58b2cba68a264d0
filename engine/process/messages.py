"""Messages between a worker and its engine process: msgspec tagged unions, msgpack on the wire.

parent.py and outbox.py send them. No other file of the engine needs msgspec.
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
    """Configuration of a new process; always the first message."""

    config: EngineConfig


class Add(msgspec.Struct, frozen=True, tag=True):
    """Add requests."""

    requests: tuple[NewRequest, ...]


class Abort(msgspec.Struct, frozen=True, tag=True):
    """End requests at once; unknown or finished ones are ignored."""

    request_ids: list[int]


class AbortChildren(msgspec.Struct, frozen=True, tag=True):
    """End single children, (request id, index) each; unknown or finished ones are ignored."""

    children: list[tuple[int, int]]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and warm."""

    info: EngineInfo


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Progress of one step, or (with no outputs) a heartbeat."""

    outputs: list[TokenDelta]
    stats: EngineStats
    step: int
    decisions: list[Decision] = []
    """Since the last report, if `EngineConfig.report_decisions` is set."""
    running_ids: list[int] | None = None
    """Requests with a seated sequence; None if the last list is recent enough."""


class Fatal(msgspec.Struct, frozen=True, tag=True):
    """The reason, in one sentence, sent before the process ends."""

    message: str


DecodeError = msgspec.DecodeError
"""Raised by decoding if the bytes are no message or a field has the wrong type."""

ToEngine = Configure | Add | Abort | AbortChildren
FromEngine = Ready | Progress | Fatal


def _as_list(value: object) -> list[int]:
    """Convert a prompt that is kept as an array to a list for msgpack. Raises TypeError for anything else."""
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
    """Decode a message that the worker sent."""
    return _to_engine.decode(payload)


def decode_from_engine(payload: bytes) -> FromEngine:
    """Decode a message that the engine process sent."""
    return _from_engine.decode(payload)
