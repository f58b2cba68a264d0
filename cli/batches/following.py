"""A batch is followed until it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from openai import OpenAI


def follow(client: OpenAI, batch_id: str, *, fail_on_errors: bool) -> None:
    """Show how far a batch is; exit with a status where it does not complete, or is no longer watched."""
    from cli.watch import describe_end, error_codes, exit_status, watch_batch

    try:
        batch = watch_batch(client, batch_id)
    except KeyboardInterrupt:
        print(f"{batch_id} goes on. Watch it again: tokenmill batch watch {batch_id}", file=sys.stderr)
        print(f"Cancel it: tokenmill batch cancel {batch_id}", file=sys.stderr)
        raise typer.Exit(130) from None
    print(describe_end(batch, codes=error_codes(client, batch)))
    if status := exit_status(batch, fail_on_errors=fail_on_errors):
        raise typer.Exit(status)
