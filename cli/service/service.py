"""An open service and the targets it is opened at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import typer

from cli.estimating.estimate import Counting
from cli.supervisor import StopRequestedError

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.watching.progress import Waiting


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A running service."""

    client: OpenAI
    model: str
    """The model name in lines."""
    window: str
    """The completion window of batches."""
    is_here: bool
    """Whether its store is on this machine: uploads need no parts."""
    on_poll: Callable[[], None] | None = None
    """Runs between polls of a batch, and may raise to stop: see `watch_batch`."""
    waiting: Waiting | None = None
    """Which waits of a batch to report; None: all."""


class Target(Counting, Protocol):
    """A place to run batches, known before it is opened: nothing is started yet."""

    @property
    def name(self) -> str:
        """Return the identity of the place and its model, which results depend on."""

    @property
    def model(self) -> str:
        """Return the model name in lines."""

    def check_schema(self, schema: Any) -> None:
        """Raise InputError if it is known here that a schema cannot be enforced."""

    def require_valid(self, lines: Path, *, endpoint: str) -> None:
        """Raise InputError if it is known here that a batch of these lines would fail validation."""

    def require_valid_lines(self, lines: Iterator[bytes], *, path: Path, endpoint: str) -> None:
        """Check lines as `require_valid` does a file; they may be left unread. `path` names them in errors."""

    def opened(self, say: Callable[[str], None]) -> AbstractContextManager[Service]:
        """Open the service for a block. Raises InputError if one runs that lacks the model."""


@contextmanager
def service_at(target: Target, *, say: Callable[[str], None]) -> Iterator[Service]:
    """Open the service of a target for a block; a signal may end it, with exit status 130."""
    try:
        with target.opened(say) as service:
            yield service
    except StopRequestedError:
        say("stopped. Run the same command again to resume.")
        raise typer.Exit(130) from None
