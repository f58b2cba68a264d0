"""`tokenmill status | doctor`: the state of the stack here or of a server, and checks of what it needs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import typer

from cli.data_dir import default_data_dir
from cli.embedded.note import running_stack_of
from cli.options import AsJson
from cli.status.options import DataDirOption
from cli.status.report import WORDS, report_of_service
from cli.table import objects_of, print_table
from jobs.errors import InputError

if TYPE_CHECKING:
    from cli.status.doctor import Finding


def status(data_dir: DataDirOption = None, *, as_json: AsJson = False) -> None:
    """Show roles, queue and workers of the stack here, or of the server at TOKENMILL_BASE_URL.

    Exit status 1 if something does not work.
    """
    report = report_of_service(data_dir)
    if as_json:
        tables = [objects_of(*section) for section in report.sections()]
        print(json.dumps({"title": report.title, "tables": tables, "problems": list(report.problems)}, indent=2))
    else:
        print(report.title)
        for section in report.sections():
            print()
            print_table(*section, numbers=set(section[0]) - WORDS)
        if report.problems:
            print()
            print("\n".join(report.problems))
    if report.problems:
        raise typer.Exit(1)


def doctor(data_dir: DataDirOption = None, *, as_json: AsJson = False) -> None:
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
    findings = []
    for finding in examine(load_settings()):
        findings.append(finding)
        if not as_json:
            _print_finding(finding)
    if as_json:
        print(json.dumps([_as_object(finding) for finding in findings], indent=2))
    if any(finding.verdict is Verdict.PROBLEM for finding in findings):
        raise typer.Exit(1)


def _as_object(finding: Finding) -> dict[str, str]:
    return {"check": finding.check, "verdict": finding.verdict, "text": finding.said, "advice": finding.advice}


def _print_finding(finding: Finding) -> None:
    print(f"{finding.check:<9} {finding.verdict:<8} {finding.said}", flush=True)
    if finding.advice:
        print(f"{'':<18} {finding.advice}", flush=True)
