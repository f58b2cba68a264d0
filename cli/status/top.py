"""`tokenmill top`: `tokenmill status`, refreshed until Ctrl-C."""

from __future__ import annotations

import sys
import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cli.status.options import DataDirOption
from cli.status.report import WORDS, ServiceReport, report_of_service
from cli.terminal_table import table
from jobs.errors import InputError

_REFRESH_SECONDS = 2.0  # as often as workers report


def top(data_dir: DataDirOption = None) -> None:
    """Refresh `status` every two seconds, with tokens per second, until Ctrl-C."""

    if not sys.stdout.isatty():
        raise InputError("top needs a terminal. Elsewhere use `tokenmill status`.")
    report = None
    with Live(console=Console(markup=False), screen=True, auto_refresh=False) as live:
        while True:
            before, report = report, report_of_service(data_dir)
            live.update(_screen(report, before), refresh=True)
            time.sleep(_REFRESH_SECONDS)


def _screen(report: ServiceReport, before: ServiceReport | None) -> RenderableType:

    laid_out = [table(*section, numbers=set(section[0]) - WORDS) for section in report.sections(before)]
    tables = [part for one in laid_out for part in (Text(), one)]
    problems = [Text(), Text("\n".join(report.problems), style="red")] if report.problems else []
    return Group(Text(report.title, style="bold"), *tables, *problems, Text(), Text("Ctrl-C to quit", style="dim"))
