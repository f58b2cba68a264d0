"""The names of pipelines, schedules, stores and steps, which are used in keys, URLs and command lines."""

from __future__ import annotations

import re

from jobs.errors import InputError

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}", re.ASCII)


def check_name(name: str, *, param: str = "name") -> str:
    """Return a valid name. Raise InputError."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{param} is {name[:80]!r}; give 1 to 63 characters of a-z, 0-9, - and _, the first a letter or a digit",
            param=param,
        )
    return name
