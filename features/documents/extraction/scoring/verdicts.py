"""Why a value is looked at by a person, and what they may say of it. Knows neither."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a value is to be looked at."""

    DOUBT = "doubt"
    SAMPLE = "sample"  # nothing speaks against it: it was drawn


class Verdict(StrEnum):
    """What a person says of a value."""

    ACCEPT = "accept"
    CORRECT = "correct"  # another one is right
    REJECT = "reject"  # the document has none: null is right; of a list without items: it has some


class Change(StrEnum):
    """What a person does with an item of a list."""

    ADD = "add"  # the document has it, and it was not extracted
    DROP = "drop"  # the document has no such item
