"""The submitted lines of one chunk that have not ended, and the most that they may use."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic

from workers.chunks.answerer import ChunkLines, Ended, L, Output


class SubmittedLines(Generic[L]):
    """Submitted lines; `len()` is how many have not ended."""

    def __init__(self, lines: ChunkLines[L]) -> None:
        self._lines = lines
        self._prices = lines.claim.prices
        self._open: dict[int, tuple[float, int, int]] = {}  # when it was submitted, and `most_of`, by line number
        self._ended: queue.SimpleQueue[Ended[L]] = queue.SimpleQueue()
        self.most_tokens = 0
        """The most tokens they may be billed for."""
        self.most_picos = 0
        """The most they may cost."""

    def __len__(self) -> int:
        return len(self._open)

    def most_of(self, line: L) -> tuple[int, int]:
        """Return the most tokens that a line may be billed for, and the most it may cost."""
        tokens, num_input = line.most_tokens, line.num_prompt_tokens
        return tokens, self._prices.cost_picos(input_tokens=num_input, output_tokens=tokens - num_input)

    def submit(self, lines: Sequence[tuple[L, Output | None]]) -> list[tuple[L, Exception]]:
        """Submit lines together, as `ChunkLines.submit` does; return those that cannot be submitted, with the error."""
        now = time.time()
        for line, _ in lines:
            tokens, picos = self.most_of(line)
            self._open[line.line_no] = (now, tokens, picos)
            self.most_tokens += tokens
            self.most_picos += picos
        refused = self._lines.submit(lines, self._ended.put)
        for line_no in refused:
            self.drop(line_no)
        return [(line, refused[line.line_no]) for line, _ in lines if line.line_no in refused]

    def wait_ended(self, timeout_seconds: float) -> Iterator[Ended[L]]:
        """Wait for the end of a line, then yield all that have ended."""
        try:
            yield self._ended.get(timeout=timeout_seconds)
        except queue.Empty:
            return
        yield from self.ended()

    def ended(self) -> Iterator[Ended[L]]:
        """Yield the lines that have ended since the last call."""
        while not self._ended.empty():
            yield self._ended.get()

    def drop(self, line_no: int) -> float | None:
        """Drop and abort a line; return when it was submitted, None if it was not."""
        began_at, tokens, picos = self._open.pop(line_no, (None, 0, 0))
        if began_at is not None:
            self.most_tokens -= tokens
            self.most_picos -= picos
            self._lines.drop(line_no)
        return began_at

    def drop_all(self) -> Mapping[int, Output]:
        """Drop and abort every line; return, by line number, the output that the next worker may resume from."""
        self._open.clear()
        self.most_tokens = self.most_picos = 0
        return self._lines.drop_all()
