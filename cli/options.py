"""Options that several commands have."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from jobs.call_limits import MAX_IDEMPOTENCY_KEY, parse_window
from jobs.errors import InputError


def _checked_key(given: str | None) -> str | None:
    """Return a key that a header can hold. Raises InputError."""
    if given is None:
        return None
    if not 0 < len(given) <= MAX_IDEMPOTENCY_KEY:
        found = f"has {len(given)} characters"
    elif not given.isascii() or not given.isprintable() or given != given.strip():
        found = f"is {given!r}"
    else:
        return given
    raise InputError(
        f"--idempotency-key {found}; give 1 to {MAX_IDEMPOTENCY_KEY} printable ASCII characters, without spaces at the "
        "ends."
    )


IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        callback=_checked_key,
        help="Given again with the same request, it returns what that made; with another request it is refused.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FailOnErrors = Annotated[bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a line failed.")]
OfCollection = Annotated[str | None, typer.Option("--collection", metavar="COLLECTION_ID", help="Of this one.")]
Newest = Annotated[int, typer.Option(min=1, help="The newest ones, at most so many.")]
WaitForServer = Annotated[
    str | None, typer.Option(help="How long a followed batch's server may be away, such as 30m or 1d [default: 1h]")
]


def duration(given: str, *, option: str) -> timedelta:
    """Read a time as --window takes it. Raises InputError that names the option."""
    try:
        return parse_window(given)
    except InputError:
        raise InputError(
            f"{option} is {given!r}. Give minutes, hours or days such as 30m, 1h or 7d, from 1m to 30d."
        ) from None
