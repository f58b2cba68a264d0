"""Follows a batch until it ends."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from cli.options import duration
from cli.watching.patience import DEFAULT, Patience
from cli.watching.watch import describe_end, error_codes, exit_status, watch_batch

if TYPE_CHECKING:
    from openai import OpenAI


def follow(client: OpenAI, batch_id: str, *, fail_on_errors: bool, wait_for_server: str | None) -> None:
    """Show the progress of a batch; exit with a status if it does not complete, or Ctrl-C ends the watch."""
    patience = Patience(
        most=DEFAULT if wait_for_server is None else duration(wait_for_server, option="--wait-for-server"),
        goes_on=f"{batch_id} continues on the server. Watch it again: tokenmill batch watch {batch_id}",
    )
    try:
        batch = watch_batch(client, batch_id, patience=patience)
    except KeyboardInterrupt:
        print(f"{batch_id} continues. Watch it again: tokenmill batch watch {batch_id}", file=sys.stderr)
        print(f"Cancel it: tokenmill batch cancel {batch_id}", file=sys.stderr)
        raise typer.Exit(130) from None
    print(describe_end(batch, codes=error_codes(client, batch)))
    if status := exit_status(batch, fail_on_errors=fail_on_errors):
        raise typer.Exit(status)
