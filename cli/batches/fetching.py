"""`tokenmill batch results`: the finished lines of a batch, a page at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.client import client_from_environment, server_errors_as_sentences
from cli.disk.download import replacing
from cli.disk.output_path import require_writable
from cli.ids import BatchId
from cli.line_tally import SOME_LINES_FAILED, LineTally, by_code, truncated
from cli.options import FailOnErrors

if TYPE_CHECKING:
    from openai import OpenAI


_PAGE = 1000


def results(
    batch_id: BatchId,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File, replaced once complete [default: standard output]")
    ] = None,
    fail_on_errors: FailOnErrors = False,
) -> None:
    """Write the finished lines, including failed ones; of a running batch, those finished so far."""
    if output is not None:
        require_writable(output)
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        tally = LineTally()
        pages = tally.passing(_pages(client, batch_id))
        if output is None:
            sys.stdout.buffer.writelines(pages)
            sys.stdout.buffer.flush()
        else:
            with replacing(output) as file:
                file.writelines(pages)
    _report(tally, output)
    if tally.num_failed and fail_on_errors:
        raise typer.Exit(SOME_LINES_FAILED)


def _report(tally: LineTally, output: Path | None) -> None:
    """Print to standard error how many lines are done and failed; nothing if standard output has good lines only."""
    if output is not None:
        print(f"{tally.num_completed:,} done, {tally.num_failed:,} failed, written to {output}", file=sys.stderr)
    if tally.codes:
        print(f"  failed lines: {by_code(tally.codes)}", file=sys.stderr)
    if cut := truncated(tally.num_truncated):
        print(f"  {cut}", file=sys.stderr)


def _pages(client: OpenAI, batch_id: str) -> Iterator[bytes]:
    """Yield the lines in the order they finished, a page at a time; at least one page."""
    import httpx

    after: str | None = None
    while True:
        query = {"limit": _PAGE} if after is None else {"limit": _PAGE, "after": after}
        answer = client.get(f"/batches/{batch_id}/results", cast_to=httpx.Response, options={"params": query})
        yield answer.content
        if answer.headers.get("x-has-more") != "true":
            return
        after = answer.headers["x-next-after"]
