"""The first screen names every command once, in a section, with all that it says of itself."""

from __future__ import annotations

from itertools import chain

from typer.main import get_command
from typer.testing import CliRunner

from cli.app import app
from cli.overview import SECTIONS, Overview


def test_every_command_is_in_one_section() -> None:
    command = get_command(app)
    assert isinstance(command, Overview)
    assert sorted(chain.from_iterable(SECTIONS.values())) == sorted(command.commands)


def test_no_description_is_cut() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert all(f"\n{title}:\n" in shown for title in SECTIONS)
    assert "..." not in shown.partition(f"\n{next(iter(SECTIONS))}:\n")[2]
