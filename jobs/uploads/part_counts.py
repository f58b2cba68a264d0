"""Count the requests of an input file part by part, in any order of arrival, so that it need not be read again.

Pure. The bytes before a part's first line end and after its last one belong to lines that may span parts: those are
counted when the parts are put together.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.lines.input_estimate import InputEstimate, InputEstimator


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCount:
    """The contents of one part."""

    head_bytes: int
    """Up to its first line end; all of it where there is none."""
    tail_bytes: int
    """After its last line end; 0 where there is no line end."""
    whole: InputEstimate
    """Of the lines between the two."""


class PartCounter:
    """Feed a part in pieces of any size, then finish; holds one line of at most 8 MiB."""

    def __init__(self, *, default_max_tokens: int) -> None:
        self._estimator = InputEstimator(default_max_tokens=default_max_tokens, first_line=1)
        self._has_line_end = False
        self._head_bytes = 0
        self._tail_bytes = 0

    def feed(self, piece: bytes) -> None:
        if not self._has_line_end:
            end = piece.find(b"\n") + 1
            if not end:
                self._head_bytes += len(piece)
                return
            self._has_line_end = True
            self._head_bytes += end
            piece = piece[end:]
        last = piece.rfind(b"\n") + 1
        self._tail_bytes = len(piece) - last if last else self._tail_bytes + len(piece)
        self._estimator.feed(piece)

    def finish(self) -> PartCount:
        return PartCount(head_bytes=self._head_bytes, tail_bytes=self._tail_bytes, whole=self._estimator.so_far)
