"""`tokenmill status | doctor`: the state of the stack here or of a server, and checks of what it needs."""

from __future__ import annotations

import os

import typer

from cli.data_dir import default_data_dir
from cli.embedded.note import running_stack_of
from cli.status.options import DataDirOption
from cli.status.report import WORDS, report_of_service
from cli.table import print_table
from jobs.errors import InputError


def status(data_dir: DataDirOption = None) -> None:
    """Show roles, queue and workers of the stack here, or of the server at TOKENMILL_BASE_URL.

    Exit status 1 if something does not work.
    """
    report = report_of_service(data_dir)
    print(report.title)
    for section in report.sections():
        print()
        print_table(*section, numbers=set(section[0]) - WORDS)
    if report.problems:
        print()
        print("\n".join(report.problems))
        raise typer.Exit(1)


def doctor(data_dir: DataDirOption = None) -> None:
    """Check what the service needs: database, broker, store, clock, disk, GPU; say how to fix what is wrong.

    Checks the stack that runs on --data-dir, otherwise what the TOKENMILL_* variables name. Exit status 1 if something
    is wrong.
    """
    from cli.status.doctor import Verdict, examine
    from jobs.settings import load_settings

    note = running_stack_of(data_dir or default_data_dir())
    if note is None and data_dir is not None:
        raise InputError(
            f"no `tokenmill up` runs on {data_dir}. Start it, or leave out --data-dir to check what the variables name."
        )
    if note is not None and (data_dir is not None or "TOKENMILL_DATABASE_URL" not in os.environ):
        os.environ.update(note.environment)
    has_problem = False
    for finding in examine(load_settings()):
        has_problem |= finding.verdict is Verdict.PROBLEM
        print(f"{finding.check:<9} {finding.verdict:<8} {finding.said}", flush=True)
        if finding.advice:
            print(f"{'':<18} {finding.advice}", flush=True)
    if has_problem:
        raise typer.Exit(1)
