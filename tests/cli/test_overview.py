"""Tests of the first screen: every command once, in a section, with its own summary."""

from __future__ import annotations

from collections import Counter

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cli.app import app
from cli.overview import Overview, commands
from features.feature import Command, Section

_WHOLE = 1_000
_REPORTS = {"status", "doctor", "usage", "quota", "admin log", "batch show", "batch decisions", "webhooks deliveries"}


def test_every_name_is_of_one_command() -> None:
    assert set(Counter(command.name for command in commands()).values()) == {1}


@pytest.mark.parametrize("command", list(commands()), ids=lambda command: command.name)
def test_the_first_screen_says_of_a_command_what_it_says_of_itself(command: Command) -> None:
    group = get_command(app)
    assert isinstance(group, Overview)
    assert group.commands[command.name].get_short_help_str(_WHOLE) == command.help


def test_no_description_is_cut() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert all(f"\n{section}:\n" in shown for section in Section)
    assert "..." not in shown.partition(f"\n{next(iter(Section))}:\n")[2]


def test_a_command_that_is_not_there_is_answered_with_one_that_is_close() -> None:
    result = CliRunner().invoke(app, ["bacth"])
    assert result.exit_code == 2
    assert "batch" in result.stderr


@pytest.mark.parametrize("command", list(commands()), ids=lambda command: command.name)
def test_no_help_of_a_group_cuts_a_sentence(command: Command) -> None:
    shown = CliRunner().invoke(app, [command.name, "--help"], terminal_width=80).output
    listed = shown.partition("\nCommands:")[2]
    assert [line for line in listed.splitlines() if line.endswith(("...", "…"))] == []


@pytest.mark.parametrize("command", list(commands()), ids=lambda command: command.name)
def test_what_lists_or_reports_prints_json_too(command: Command) -> None:
    group = get_command(app)
    assert isinstance(group, Overview)
    part = group.commands[command.name]
    parts = {f"{command.name} {name}": each for name, each in getattr(part, "commands", {}).items()}
    reporting = {name: each for name, each in parts.items() if name.endswith(" list") or name in _REPORTS}
    if command.name in _REPORTS:
        reporting[command.name] = part
    without = [name for name, each in reporting.items() if not any("--json" in param.opts for param in each.params)]
    assert without == []
