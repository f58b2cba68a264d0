"""Options of several commands."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from jobs.call_limits import MAX_IDEMPOTENCY_KEY, parse_window
from jobs.errors import InputError


def _checked_key(key: str | None) -> str | None:
    """Return a key that a header can hold. Raises InputError."""
    if key is None:
        return None
    if not 0 < len(key) <= MAX_IDEMPOTENCY_KEY:
        problem = f"has {len(key)} characters"
    elif not key.isascii() or not key.isprintable() or key != key.strip():
        problem = f"is {key!r}"
    else:
        return key
    raise InputError(
        f"--idempotency-key {problem}; give 1 to {MAX_IDEMPOTENCY_KEY} printable ASCII characters, without leading or "
        "trailing spaces."
    )


IdempotencyKey = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        callback=_checked_key,
        help="The same request with the same key returns the first result; another request is refused.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FailOnErrors = Annotated[bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a line failed.")]
OfCollection = Annotated[
    str | None, typer.Option("--collection", metavar="COLLECTION_ID", help="Only of this collection.")
]
Day = typer.Option(formats=["%Y-%m-%d"], metavar="YYYY-MM-DD", help="A day (UTC), itself included.")
Newest = Annotated[int, typer.Option(min=1, help="Number of entries, newest first.")]
WaitForServer = Annotated[
    str | None, typer.Option(help="How long to wait while the server is unreachable, such as 30m or 1d [default: 1h]")
]


def duration(text: str, *, option: str) -> timedelta:
    """Parse a duration in the format of --window. Raises InputError that names the option."""
    try:
        return parse_window(text)
    except InputError:
        raise InputError(
            f"{option} is {text!r}. Give minutes, hours or days such as 30m, 1h or 7d, from 1m to 30d."
        ) from None
