"""Reasons for reviews, verdicts of reviewers, and changes of items."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a value should be reviewed."""

    DOUBT = "doubt"
    SAMPLE = "sample"  # drawn at random; nothing speaks against it


class Verdict(StrEnum):
    """A person's decision about a value."""

    ACCEPT = "accept"
    CORRECT = "correct"  # another value is right
    REJECT = "reject"  # the document has no such value: null is right; for an empty list: it has items


class Change(StrEnum):
    """A person's change of an item of a list."""

    ADD = "add"  # the document has it, but it was not extracted
    DROP = "drop"  # the document has no such item
