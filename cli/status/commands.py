"""`tokenmill status | top | logs | doctor`: what runs here or on the server, how it is, and what its roles wrote."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobs.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from cli.status.report import ServiceReport

_LOOK_SECONDS = 2.0  # as often as workers report
_FOLLOW_SECONDS = 0.3

DataDirOption = Annotated[
    Path | None, typer.Option(help="Folder of `tokenmill up` [default: $TOKENMILL_DATA_DIR or ~/.local/share/…]")
]


def status(data_dir: DataDirOption = None) -> None:
    """Show what runs here, or on the server of TOKENMILL_BASE_URL: roles, queue, workers.

    Exit status 1 where something of it does not work.
    """
    from cli.status.report import WORDS, report_of_service
    from cli.table import print_table

    report = report_of_service(data_dir)
    print(report.title)
    for section in report.sections():
        print()
        print_table(*section, numbers=set(section[0]) - WORDS)
    if report.problems:
        print()
        print("\n".join(report.problems))
        raise typer.Exit(1)


def top(data_dir: DataDirOption = None) -> None:
    """Show the same as `status` again and again, with tokens per second, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from cli.status.report import report_of_service

    if not sys.stdout.isatty():
        raise InputError("top needs a terminal. For one look, use `tokenmill status`.")
    report = None
    with Live(console=Console(markup=False), screen=True, auto_refresh=False) as live:
        while True:
            before, report = report, report_of_service(data_dir)
            live.update(_screen(report, before), refresh=True)
            time.sleep(_LOOK_SECONDS)


def _screen(report: ServiceReport, before: ServiceReport | None) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from cli.status.report import WORDS
    from cli.table import table

    found = [table(*section, numbers=set(section[0]) - WORDS) for section in report.sections(before)]
    tables = [part for one in found for part in (Text(), one)]
    problems = [Text(), Text("\n".join(report.problems), style="red")] if report.problems else []
    return Group(Text(report.title, style="bold"), *tables, *problems, Text(), Text("Ctrl-C ends it", style="dim"))


def doctor(data_dir: DataDirOption = None) -> None:
    """Examine what the service needs: database, broker, store, clock, disk, GPU; say what is wrong and what to do.

    Of the stack that runs on --data-dir, else of the TOKENMILL_* variables. Exit status 1 where something is wrong.
    """
    from cli.embedded.note import running_stack_of
    from cli.status.doctor import Verdict, examine
    from cli.up_command import default_data_dir
    from jobs.settings import load_settings

    note = running_stack_of(data_dir or default_data_dir())
    if note is None and data_dir is not None:
        raise InputError(
            f"no `tokenmill up` runs on {data_dir}. Start it, or leave --data-dir out to examine what is set."
        )
    if note is not None and (data_dir is not None or "TOKENMILL_DATABASE_URL" not in os.environ):
        os.environ.update(note.environment)
    has_problem = False
    for found in examine(load_settings()):
        has_problem |= found.verdict is Verdict.PROBLEM
        print(f"{found.check:<9} {found.verdict:<8} {found.said}", flush=True)
        if found.advice:
            print(f"{'':<18} {found.advice}", flush=True)
    if has_problem:
        raise typer.Exit(1)


def logs(
    role: Annotated[str | None, typer.Argument(help="api, worker, postgres … [default: all]")] = None,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is written, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="The last so many of each role.")] = 20,
    data_dir: DataDirOption = None,
) -> None:
    """Show what the roles of `tokenmill up` have written."""
    from cli.data_dir import DataDir
    from cli.up_command import default_data_dir

    folder = DataDir(root=(data_dir or default_data_dir()).expanduser().absolute()).logs
    found = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if not found:
        raise InputError(f"there are no logs in {folder}. Start `tokenmill up`, or name its folder with --data-dir.")
    if role is not None and role not in found:
        raise InputError(f"there is no log of {role!r} in {folder}; there are those of {', '.join(found)}")
    chosen = found if role is None else {role: found[role]}
    prefixes = {name: "" if len(chosen) == 1 else f"{name:<{max(map(len, chosen))}} | " for name in chosen}
    ends = {name: _print_last(path, lines, prefix=prefixes[name], is_whole=follow) for name, path in chosen.items()}
    while follow:
        time.sleep(_FOLLOW_SECONDS)
        for name, path in chosen.items():
            ends[name] = _print_new(path, ends[name], prefix=prefixes[name])


def _print_last(path: Path, count: int, *, prefix: str, is_whole: bool) -> int:
    """Print the last lines, with `is_whole` not the one that is being written; return where those behind begin."""
    end = 0
    last: deque[bytes] = deque(maxlen=count)
    with path.open("rb") as file:
        for line in file:
            if is_whole and not line.endswith(b"\n"):
                break
            end += len(line)
            last.append(line)
    for line in last:
        _print_line(line, prefix)
    return end


def _print_new(path: Path, start: int, *, prefix: str) -> int:
    """Print the whole lines behind `start`; a log that became shorter was emptied, and is read anew."""
    with path.open("rb") as file:
        start = start if path.stat().st_size >= start else 0
        file.seek(start)
        for line in file:
            if not line.endswith(b"\n"):
                break
            _print_line(line, prefix)
            start += len(line)
    return start


def _print_line(line: bytes, prefix: str) -> None:
    print(prefix + line.decode(errors="replace").rstrip("\n"), flush=True)
