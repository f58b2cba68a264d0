"""Find lines of one input with identical requests that have only one possible answer. Pure; ignores billing."""

from __future__ import annotations

from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.endpoints import Request
from jobs.lines.reading import InputLine, short_digest

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
        # Once: where the same text occurs before the custom_id, the latter stays in, and again no other line is equal.
        rest = content.replace(f'"{line.custom_id}"'.encode(), _NO_ID, 1)
        first = self._first_lines.setdefault(short_digest(rest), line.line_no)
        return None if first == line.line_no else first
