"""`tokenmill extract`: a command that takes documents, and beside it commands of a name.

Where the first word is no such name, it is the first document.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from cli.extracting import evaluating
from cli.extracting.command import extract

_DEFAULT = "documents"


class _WithDefault(TyperGroup):
    """Reads a call that names no command as one of the default command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = [_DEFAULT, *args]
        return super().parse_args(ctx, args)


class _Default(TyperCommand):
    """Is shown under the name of its group, as it is called."""

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


def register(app: typer.Typer) -> None:
    group = typer.Typer(cls=_WithDefault, help=extract.__doc__)
    group.command(_DEFAULT, cls=_Default)(extract)
    evaluating.register(group)
    app.add_typer(group, name="extract")
