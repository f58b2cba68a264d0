"""The pages of docs/tutorials, and that of operations, run word for word."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest

from cli.embedded.sockets import free_port
from tests.tutorial import ROOT, Terminal, matches, steps

pytestmark = pytest.mark.long

PAGES = {path.stem: path for path in [*ROOT.glob("docs/tutorials/*.md"), ROOT / "docs" / "operations.md"]}

OF_ONE_DAY = {"nightly"}
"""Pages whose documents are those of today."""
LONGEST = timedelta(minutes=5)


def midnight() -> datetime:
    return datetime.combine(datetime.now(UTC).date() + timedelta(days=1), time(), tzinfo=UTC)


def environment(home: Path) -> dict[str, str]:
    """Return that of a shell which knows nothing but the commands of this installation."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return clean | {"PATH": path, "XDG_DATA_HOME": str(home), "COLUMNS": "100"}


@contextmanager
def first_terminal(command: str, variables: dict[str, str]) -> Iterator[str]:
    """Type `tokenmill up …` and yield the line that it prints; its port is a free one, since other stacks run here."""
    typed = f"exec {command.strip()} --port {free_port()}"
    with subprocess.Popen(["bash", "-c", typed], stdout=subprocess.PIPE, text=True, env=variables) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(90)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_shows_what_its_commands_print(name: str, tmp_path: Path, memory_folder: Path) -> None:
    if name in OF_ONE_DAY and datetime.now(UTC) + LONGEST > midnight():
        pytest.skip("the day would be another one before the page is over")
    start, *others = steps(PAGES[name])
    home = memory_folder / name  # the bill of another page would be on this one's
    home.mkdir()
    variables = environment(home)
    with first_terminal(start.commands, variables) as export:
        assert matches(start.shown or "", export)
        terminal = Terminal(tmp_path, variables)
        terminal.run(export)
        for step in others:
            printed, status = terminal.run(step.commands.replace("…/examples", f"{ROOT}/examples"))
            assert step.shown is None or matches(step.shown, printed), printed
            assert status == 0 or step.shown is not None, printed
        terminal.close()
