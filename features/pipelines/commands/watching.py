"""Follows one run until it ends."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from cli.calls import Calls, named
from cli.watching.patience import Patience, ask_patiently
from features.pipelines.commands.shown import ENDED, end_line, progress_lines

_POLL_SECONDS = 0.5


def watch_run(calls: Calls, run_id: str, *, out: TextIO | None = None) -> dict[str, Any]:
    """Print the progress of a run, each line once, to standard output or `out`; return the run when it has ended."""
    out = sys.stdout if out is None else out
    printed: set[str] = set()
    path = named("runs", run_id)
    patience = Patience(goes_on=f"{run_id} continues on the server. Watch it again: tokenmill runs watch {run_id}")
    while True:
        run = ask_patiently(calls.client, lambda: calls.get(path), patience=patience)
        for line in progress_lines(run):
            if line not in printed:
                printed.add(line)
                print(line, file=out, flush=True)
        if run["status"] in ENDED:
            print(end_line(run), file=out, flush=True)
            return run
        time.sleep(_POLL_SECONDS)
