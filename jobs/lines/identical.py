"""Find lines of one input with identical requests that have only one possible answer. Pure; ignores billing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.endpoints import Request
from jobs.lines.reading import InputLine, custom_id_of, short_digest

_NO_ID = b"\0"  # occurs in no JSON


class IdenticalLines:
    """The deterministic lines of a file, and which line had the same request first.

    Keeps a `short_digest` of each: about 110 MiB for a million such lines, and none for lines whose answers are
    sampled.
    """

    def __init__(self) -> None:
        self._first_lines: dict[int, int] = {}

    def add(self, line: InputLine, content: bytes, request: Request) -> int | None:
        """Add a line; return the earlier line that is equal byte for byte except for its custom_id, or None.

        None also for lines that are not generated. A custom_id written with escapes stays in the comparison, so that no
        other line is equal.
        """
        if not isinstance(request, (ChatRequest, CompletionRequest)):
            return None
        sampling = request.sampling
        if sampling.temperature != 0 and sampling.seed is None:
            return None
        first = self._first_with(_without_id(content, line.custom_id), line.line_no)
        return None if first == line.line_no else first

    def _first_with(self, content: bytes, line_no: int) -> int:
        return self._first_lines.setdefault(short_digest(content), line_no)


class LastingIdenticalLines(IdenticalLines):
    """The same for a batch whose lines come in several inputs, by digests that can be stored."""

    def __init__(self) -> None:
        super().__init__()
        self.new: dict[bytes, int] = {}
        """Digests of added lines that no earlier line has, and their line numbers."""
        self._known: Mapping[bytes, int] = {}

    def look_up(self, lines: Iterable[bytes], find: Callable[[Sequence[bytes]], Mapping[bytes, int]]) -> None:
        """Look up which earlier line each of these equals; `find` takes digests. Call before they are added."""
        ids = ((content, custom_id_of(content)) for content in lines)
        self._known = find([_lasting_digest(_without_id(content, name)) for content, name in ids if name is not None])

    def _first_with(self, content: bytes, line_no: int) -> int:
        digest = _lasting_digest(content)
        known = self._known.get(digest)
        return self.new.setdefault(digest, line_no) if known is None else known


def _without_id(content: bytes, custom_id: str) -> bytes:
    # Once: where the same text occurs before the custom_id, the latter stays in, and again no other line is equal.
    return content.replace(f'"{custom_id}"'.encode(), _NO_ID, 1)


def _lasting_digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=16).digest()
