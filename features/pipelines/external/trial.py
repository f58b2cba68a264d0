"""A trial of a store before it is registered: list it, and write where pipelines may."""

from __future__ import annotations

import os
from collections.abc import Mapping

from features.pipelines.external.opening import open_store
from jobs.errors import InputError, TokenmillError

_TIMEOUT_SECONDS = 10.0


def unset_variables(options: Mapping[str, str]) -> list[str]:
    """Return the variables that options name and this process lacks: without them no trial is possible."""
    names = (value.removeprefix("env:") for value in options.values() if value.startswith("env:"))
    return [name for name in names if name not in os.environ]


def try_store(name: str, url: str, options: Mapping[str, str], *, is_writable: bool) -> None:
    """Raise InputError if the store cannot be listed from here or, for a writable store, if writing fails."""
    store = open_store(name, url, options, timeout_seconds=_TIMEOUT_SECONDS)
    try:
        next(iter(store.list("")), None)
        if is_writable:
            key = f"_tokenmill-trial-{os.urandom(4).hex()}"  # sources skip such names
            with store.create(key) as file:
                file.write(b"tokenmill")
            store.delete(key)
    except TokenmillError as error:
        raise InputError(
            f"{error.message.rstrip('.')}. Correct the URL, the options or the rights; if only the control workers can "
            "use the store, add it with --unchecked."
        ) from None
