"""`tokenmill extract`: a group whose command `run` needs no name, as in `tokenmill extract DOCS --schema S -o OUT`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import typer

from cli.extracting import evaluating
from cli.extracting.command import run
from cli.extracting.index_command import index
from cli.overview import WholeHelp

_DEFAULT = "run"
_LIKENESS = 0.75
"""Of a first word that is taken for a misspelled subcommand if no such file exists."""


class _WithDefault(WholeHelp):
    """Takes arguments that begin with no subcommand as those of `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_DEFAULT, *args] if self._are_of_default(ctx, args) else args)

    def _are_of_default(self, ctx: Any, args: list[str]) -> bool:
        if not args or args[0] in self.commands or args[0] in ctx.help_option_names:
            return False
        return not self._is_misspelled(args[0])

    def _is_misspelled(self, word: str) -> bool:
        return not Path(word).exists() and bool(difflib.get_close_matches(word, self.commands, cutoff=_LIKENESS))


app = typer.Typer(
    cls=_WithDefault,
    no_args_is_help=True,
    help="""Extract the fields of a schema from documents, with the place of each value.

    `tokenmill extract DOCS --schema S.json -o OUT.jsonl` is short for `tokenmill extract run DOCS …`; a folder that is
    called like a subcommand is given as ./NAME.
    """,
)
app.command(_DEFAULT)(run)
app.command("index")(index)
evaluating.register(app)
