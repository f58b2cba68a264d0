"""Counts over the documents and values of an extraction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Counts over documents and values, updated as records pass."""

    num_done: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    """Failed documents by code."""
    groundings: Counter[str] = field(default_factory=Counter)
    """Values that must be in their document, by kind of match."""
    num_noted: int = 0
    """Documents with notes about parsing or questions."""
    num_to_review: int = 0
    """Values, including null, that need review."""
    num_withheld: int = 0
    """Values set to null because the answer is not in the document."""
    usage: Counter[str] = field(default_factory=Counter)

    def passing(self, records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for one in records:
            if one["error"] is None:
                self.num_done += 1
            else:
                self.codes[one["error"]["code"]] += 1
            self.groundings.update(each["grounding"] for each in one["evidence"] if "status" in each["features"])
            self.usage.update(one["usage"])
            self.num_noted += bool(one.get("notes"))  # missing on an older server
            self.num_to_review += sum(each["review"] for each in one["evidence"])
            self.num_withheld += sum("answer" in each for each in one["evidence"])
            yield one
