"""Runs the batches of a job one after the other, at a place that is opened for the first of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import typer

from cli.estimating.estimate import Counting
from cli.places.run_folder import RunFolder
from cli.places.stage import Stage
from cli.supervisor import StopRequestedError


class Connection(Protocol):
    """An open place that runs batches."""

    def run(self, stage: Stage) -> Any:
        """Write the results of a stage's lines; return the batch, or None if none was needed.

        Raises ServiceError if the batch does not complete.
        """


class Place(Counting, Protocol):
    """A place that runs batches, not opened yet."""

    @property
    def name(self) -> str:
        """Return the identity of the place and its model, which results depend on."""

    @property
    def model(self) -> str:
        """Return the model name in lines."""

    def check_schema(self, schema: Any) -> None:
        """Raise InputError if it is known here that a schema cannot be enforced."""

    def require_valid(self, stage: Stage) -> None:
        """Raise InputError if it is known here that a batch of a stage's lines would fail validation."""

    def connect(self, run: RunFolder, closing: ExitStack) -> Connection:
        """Open the place for a run, until `closing` ends."""


class Session:
    """Runs the stages of a run; not thread-safe."""

    def __init__(self, place: Place, run: RunFolder, closing: ExitStack) -> None:
        self._place = place
        self._run = run
        self._closing = closing
        self._connection: Connection | None = None

    def run(self, stage: Stage, *, is_valid: bool = False) -> Any:
        """Run a stage as `Connection.run` does, unless its results are there.

        Raises InputError if lines that have not been checked are invalid.
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
    """Open a session that ends with the block; a signal may stop it."""
    try:
        with ExitStack() as closing:
            yield Session(place, run, closing)
    except StopRequestedError:
        say("stopped. Run the same command again to resume.")
        raise typer.Exit(130) from None
