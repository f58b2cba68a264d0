"""Counts finished lines as they pass: done, failed by code, truncated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

SOME_LINES_FAILED = 3
"""The exit status of `--fail-on-errors`."""


@dataclass(slots=True)
class LineTally:
    """Counts over the lines of output and error files."""

    num_completed: int = 0
    num_truncated: int = 0
    """Completed lines with an answer that ended at `max_tokens` or the context."""
    codes: Counter[str] = field(default_factory=Counter)
    """Failed lines by error code."""

    @property
    def num_failed(self) -> int:
        return self.codes.total()

    def passing(self, pages: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pages of whole lines unchanged, and count their lines."""
        for page in pages:
            for line in page.splitlines():
                self.add(line)
            yield page

    def add(self, line: bytes) -> None:
        """Count one line; ignore what is not a result of a batch."""
        try:
            result = orjson.loads(line)
        except orjson.JSONDecodeError:
            return
        if not _is_result(result):
            return
        response = _object(result, "response")
        error = _object(result, "error") or _error_of(response)
        if error is not None:
            self.codes[str(error.get("code") or response.get("status_code"))] += 1
            return
        self.num_completed += 1
        choices = _object(response, "body").get("choices")
        self.num_truncated += any(_is_cut(choice) for choice in choices) if isinstance(choices, list) else False


def _is_result(value: Any) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(name), dict) for name in ("response", "error"))


def _object(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a value that is an object itself; otherwise an empty one."""
    value = of.get(name)
    return value if isinstance(value, dict) else {}


def _error_of(response: Mapping[str, Any]) -> Mapping[str, Any] | None:
    status = response.get("status_code", 200)
    if not isinstance(status, int) or status < 400:
        return None
    return _object(_object(response, "body"), "error")


def _is_cut(choice: Any) -> bool:
    return isinstance(choice, dict) and choice.get("finish_reason") == "length"


def by_code(codes: Mapping[str, int]) -> str:
    """Return such as `context_length_exceeded 3, engine_failure 1`, most frequent first."""
    ordered = sorted(codes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{code} {count:,}" for code, count in ordered)


def truncated(count: int) -> str:
    """Return a sentence about truncated answers; empty if there are none."""
    if not count:
        return ""
    was = "answer was" if count == 1 else "answers were"
    return f"{count:,} {was} truncated: ended by max_tokens or the context (finish_reason length)"
