"""Tests of the pages of docs/tutorials and of operations, run word for word on one service, each by its own tenant."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.tutorial import ROOT, Terminal, matches, steps

pytestmark = pytest.mark.long

PAGES = {path.stem: path for path in [*ROOT.glob("docs/tutorials/*.md"), ROOT / "docs" / "operations.md"]}

OF_ONE_DAY = {"nightly"}
"""Pages whose documents are of today."""
OF_DEFAULT = {"nightly"}
"""Pages that name the tenant of `tokenmill up`."""
INSTALLED = Path(sys.executable).parent
AS_INSTALLED = {"first_batch", "extract_invoices"}
"""Pages that are run with the installed command; the others are with a quick one."""
LONGEST = timedelta(minutes=5)


def midnight() -> datetime:
    return datetime.combine(datetime.now(UTC).date() + timedelta(days=1), time(), tzinfo=UTC)


def environment(home: Path, commands: Path) -> dict[str, str]:
    """Return the environment of a shell that has only this installation's commands, after those of a folder."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    path = f"{commands}:{INSTALLED}:{os.environ['PATH']}"
    return clean | {"PATH": path, "XDG_DATA_HOME": str(home), "COLUMNS": "100"}


@pytest.fixture(scope="module")
def home(shared_stack: Any) -> Path:
    return Path(shared_stack.data_dir).parent


def reader_of(name: str, stack: Any) -> Any:
    """Return the stack as the page's reader sees it: without other pages' bills, except for the tenant of stores."""
    return stack if name in OF_DEFAULT else stack.of_tenant(name)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_shows_what_its_commands_print(
    name: str, tmp_path: Path, shared_stack: Any, home: Path, quick_commands: Path
) -> None:
    if name in OF_ONE_DAY and datetime.now(UTC) + LONGEST > midnight():
        pytest.skip("the day would be another one before the page is over")
    start, *others = steps(PAGES[name])
    assert start.commands == "tokenmill up\n"
    reader = reader_of(name, shared_stack)
    assert matches(start.shown or "", reader.export)
    commands = INSTALLED if name in AS_INSTALLED else quick_commands
    terminal = Terminal(tmp_path, environment(home, commands))
    terminal.run(reader.export)
    for step in others:
        printed, status = terminal.run(step.commands.replace("…/examples", f"{ROOT}/examples"))
        assert step.shown is None or matches(step.shown, printed), printed
        assert status == 0 or step.shown is not None, printed
    terminal.close()
