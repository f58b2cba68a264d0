"""The commands of `tokenmill`: listed by who needs them, and loaded one at a time, when they are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from cli.loading import without_collections
from features import FEATURES
from features.feature import Command, Section, resolve

_SHOULD_BE = "Input should be "  # as pydantic begins


class Interrupted(Exception):  # no error: somebody wanted it so
    """Ctrl-C, which typer would end without a word."""


def commands(section: Section | None = None) -> Iterator[Command]:
    """Yield the commands of all features, or those of one section."""
    for feature in FEATURES:
        yield from (each for each in feature.commands if section in (None, each.section))


class _Loading(Mapping[str, Any]):
    """The commands by name; each is loaded when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        command = next((each for each in commands() if each.name == name), None)
        if command is None:
            raise KeyError(name)
        return _load(command)

    def __iter__(self) -> Iterator[str]:
        return (command.name for command in commands())

    def __len__(self) -> int:
        return len(list(commands()))


class Overview(TyperGroup):
    """A group whose commands are those of the features."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _Loading()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section in Section:
            with formatter.section(section.value):
                formatter.write_dl([(command.name, command.help) for command in commands(section)])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. A value that cannot be one of its option is named; pydantic, which checks it, does not."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _said_of_value(error)
            raise
        except KeyboardInterrupt:
            raise Interrupted from None

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Read the command line."""
        try:
            return super().make_context(*given, **named)
        except KeyboardInterrupt:
            raise Interrupted from None


def _load(command: Command) -> Any:
    with without_collections():
        part = resolve(command.part)
    parent = typer.Typer(rich_markup_mode=None)
    if isinstance(part, typer.Typer):
        parent.add_typer(part, name=command.name)
    else:
        parent.command(command.name)(part)
        parent.callback()(lambda: None)  # which keeps a group of one command a group
    return get_group(parent).commands[command.name]


def _said_of_value(error: typer.BadParameter) -> str:
    """Return what was given and what is allowed, where pydantic found it; the rest is ours and stays as it is."""
    found_by = getattr(error.__cause__, "errors", None)
    if found_by is None:
        return error.message
    found = found_by(include_url=False)[0]
    allowed = str(found["msg"]).removeprefix(_SHOULD_BE)
    if allowed == found["msg"]:
        return allowed.removeprefix("Value error, ")
    return f"{found['input']!r} is given; it must be {allowed.partition(', unable')[0]}"
