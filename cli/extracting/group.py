"""`tokenmill extract`: a command for documents, one for an index, and named subcommands.

A first word that is not a subcommand is the first document.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from cli.extracting import evaluating
from cli.extracting.command import extract
from cli.extracting.index_command import extract_of_index

_DEFAULT = ":documents"  # cannot be a subcommand that a user types
_OF_INDEX = ":index"


class _WithDefault(TyperGroup):
    """Without a subcommand, runs the default command, or with --index the one for an index."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            is_of_index = any(arg.partition("=")[0] == "--index" for arg in args)
            if is_of_index and "--help" in args:  # would be taken for the id
                args = ["--help"]
            args = [_OF_INDEX if is_of_index else _DEFAULT, *args]
        return super().parse_args(ctx, args)


class _Default(TyperCommand):
    """A command that is shown under the name of its group."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


app = typer.Typer(cls=_WithDefault, help=extract.__doc__)
app.command(_DEFAULT, cls=_Default)(extract)
app.command(_OF_INDEX, cls=_Default, hidden=True)(extract_of_index)
evaluating.register(app)
