"""Runs the batches of one job, one after the other, by something that is opened when the first of them needs it.

Knows neither what it is nor what the lines ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import typer

from cli.places.estimate import Counting
from cli.places.run_folder import RunFolder
from cli.places.stage import Stage
from cli.supervisor import StopRequestedError


class Connection(Protocol):
    """Something open that runs batches."""

    def run(self, stage: Stage) -> Any:
        """Bring the results of a stage's lines to their place; return the batch, None where none was needed.

        Raises ServiceError where the batch does not complete.
        """


class Place(Counting, Protocol):
    """Something that runs batches, not opened yet."""

    @property
    def name(self) -> str:
        """Return what tells this place and model from others: results are of one of them."""

    @property
    def model(self) -> str:
        """Return the name that lines give."""

    def check_schema(self, schema: Any) -> None:
        """Raise InputError where it is known here that a schema cannot be kept."""

    def require_valid(self, stage: Stage) -> None:
        """Raise InputError where it is known here that a batch of a stage's lines would fail validation."""

    def connect(self, run: RunFolder, closing: ExitStack) -> Connection:
        """Open it for a run, until `closing` ends."""


class Session:
    """Runs stages of one run; not for threads."""

    def __init__(self, place: Place, run: RunFolder, closing: ExitStack) -> None:
        self._place = place
        self._run = run
        self._closing = closing
        self._connection: Connection | None = None

    def run(self, stage: Stage, *, is_valid: bool = False) -> Any:
        """Bring the results of a stage beside its lines, as `Connection.run` does, unless they are there.

        Raises InputError where lines that nobody has checked are not valid.
        """
        if stage.is_done:
            return None
        if not is_valid and not stage.is_begun:
            self._place.require_valid(stage)
        if self._connection is None:
            self._connection = self._place.connect(self._run, self._closing)
        return self._connection.run(stage)


@contextmanager
def session_at(place: Place, run: RunFolder, *, say: Callable[[str], None]) -> Iterator[Session]:
    """Open a session that ends with the block; a person may stop it."""
    try:
        with ExitStack() as closing:
            yield Session(place, run, closing)
    except StopRequestedError:
        say("stopped. Run the same command again to go on.")
        raise typer.Exit(130) from None
