"""The commands of `tokenmill`, by section; each is loaded when it is called."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from cli.loading import without_collections
from features import FEATURES
from features.feature import Command, Section, resolve

_SHOULD_BE = "Input should be "  # the beginning of pydantic's messages


class Interrupted(Exception):  # not an error: a user's request
    """Ctrl-C, which typer would end without a message."""


def commands(section: Section | None = None) -> Iterator[Command]:
    """Yield the commands of all features, or those of one section."""
    for feature in FEATURES:
        yield from (each for each in feature.commands if section in (None, each.section))


class _Loading(Mapping[str, Any]):
    """The commands by name; each is loaded when it is looked up."""

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
    """The group of the commands of all features."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = _Loading()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for section in Section:
            with formatter.section(section.value):
                formatter.write_dl([(command.name, command.help) for command in commands(section)])

    def invoke(self, ctx: Any) -> Any:
        """Run the command. An error about an option's value names the value, which pydantic's message does not."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _value_message(error)
            raise
        except KeyboardInterrupt:
            raise Interrupted from None

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        """Parse the command line."""
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:
            raise Interrupted from None


class WholeHelp(TyperGroup):
    """A group whose help wraps the sentences about its commands: typer's own are cut at the width."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(limit=sys.maxsize)) for name, command in commands if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _load(command: Command) -> Any:
    with without_collections():
        part = resolve(command.part)
    parent = typer.Typer(rich_markup_mode=None)
    if isinstance(part, typer.Typer):
        parent.add_typer(part, name=command.name, cls=part.info.cls or WholeHelp)
    else:
        parent.command(command.name)(part)
        parent.callback()(lambda: None)  # keeps a group of one command a group
    return get_group(parent).commands[command.name]


def _value_message(error: typer.BadParameter) -> str:
    """Return the value and the allowed ones for an error of pydantic; our own messages are not changed."""
    errors = getattr(error.__cause__, "errors", None)
    if errors is None:
        return error.message
    first = errors(include_url=False)[0]
    allowed = str(first["msg"]).removeprefix(_SHOULD_BE)
    if allowed == first["msg"]:
        return allowed.removeprefix("Value error, ")
    return f"{first['input']!r} is given; it must be {allowed.partition(', unable')[0]}"
