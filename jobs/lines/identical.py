"""Lines of one input that ask for the very same thing and can have one answer only. Pure; nothing of what is billed."""

from __future__ import annotations

from jobs.lines.bodies import ChatRequest, CompletionRequest
from jobs.lines.endpoints import Request
from jobs.lines.reading import InputLine, short_digest

_NO_ID = b"\0"  # stands in no JSON


class IdenticalLines:
    """The lines of a file whose answer is not drawn, and which of them had the same request first.

    Keeps a `short_digest` of each: about 110 MiB at a million of such lines, and none where answers are drawn.
    """

    def __init__(self) -> None:
        self._first_lines: dict[int, int] = {}

    def add(self, line: InputLine, content: bytes, request: Request) -> int | None:
        """Remember a line; return the earlier one that is the same but for its custom_id, byte for byte, or None.

        None for what is not generated, too. Where the custom_id is written with escapes, it stays in what is compared
        and no other line is the same.
        """
        if not isinstance(request, (ChatRequest, CompletionRequest)):
            return None
        sampling = request.sampling
        if sampling.temperature != 0 and sampling.seed is None:
            return None
        # Once: where the same text comes before the custom_id, that one stays in, and again no other line is the same.
        rest = content.replace(f'"{line.custom_id}"'.encode(), _NO_ID, 1)
        first = self._first_lines.setdefault(short_digest(rest), line.line_no)
        return None if first == line.line_no else first
