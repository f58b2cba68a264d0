"""Counts finished lines as they pass: which are done, why others failed, which answers were truncated. No HTTP."""

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
    """What the lines of output and error files say, counted."""

    num_completed: int = 0
    num_truncated: int = 0
    """Of the completed: an answer was ended by `max_tokens` or the context."""
    codes: Counter[str] = field(default_factory=Counter)
    """How many lines failed, by error code."""

    @property
    def num_failed(self) -> int:
        return self.codes.total()

    def passing(self, pages: Iterable[bytes]) -> Iterator[bytes]:
        """Yield pages of whole lines as they are, and count what is in them."""
        for page in pages:
            for line in page.splitlines():
                self.add(line)
            yield page

    def add(self, line: bytes) -> None:
        """Count one line; what is no result of a batch counts as nothing."""
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
    """Return an object's value that is an object itself; an empty one where it is none."""
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
    """Return such as `context_length_exceeded 3, engine_failure 1`, the most frequent first."""
    ordered = sorted(codes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{code} {count:,}" for code, count in ordered)


def truncated(count: int) -> str:
    """Return what is to be said of answers that were truncated; nothing where there are none."""
    if not count:
        return ""
    was = "answer was" if count == 1 else "answers were"
    return f"{count:,} {was} truncated: ended by max_tokens or the context (finish_reason length)"
