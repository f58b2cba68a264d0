"""The two places where batches run: a stack on this machine, and a server."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.client import client_from_environment, make_client, server_errors_as_sentences
from cli.disk.input_check import require_valid
from cli.embedded.sockets import free_port
from cli.estimating.estimate import Counted
from cli.estimating.places import count_here, count_on_server
from cli.places.run_folder import RunFolder
from cli.places.session import Connection, Place
from cli.places.stage import Stage
from cli.places.submission import Submitting
from cli.served_model import DEMO_NAME, choose_model
from cli.service.options import say
from cli.watching.progress import Waiting
from features.pipelines.rows.lines.requests import ENDPOINT
from jobs.errors import InputError
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.served_model import ServedModel

_WINDOW = "30d"  # there is no deadline here; it only has to outlast the run
_MAX_DEATHS = 5
# A stopped run drops its unfinished lines rather than make the user wait; finished ones are saved.
_DRAIN_SECONDS = "3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisMachine:
    """A stack on this machine, started for the run."""

    served: ServedModel
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        return self.served.path

    @property
    def model(self) -> str:
        return self.served.name

    def check_schema(self, schema: Any) -> None:
        from workers.structure import Asker, structured_output

        try:
            structured_output(Structure(param="schema", fields={"json": schema}), Asker())
        except BodyError as error:
            raise InputError(f"the schema cannot be enforced: {error}", param="schema", code="invalid_schema") from None

    def require_valid(self, stage: Stage) -> None:

        require_valid(stage.lines, endpoint=stage.endpoint, model=self.model)

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:
        return count_here(self.served, lines, endpoint=endpoint)

    def connect(self, run: RunFolder, closing: ExitStack) -> Connection:
        from cli.stack import StackOptions, running_stack

        self.say(f"starting a database and a worker for this run, and loading {self.served.path}")
        options = StackOptions(
            data_dir=run.stack,
            model=self.served,
            port=free_port(),
            max_deaths=_MAX_DEATHS,
            environment={"TOKENMILL_DRAIN_SECONDS": _DRAIN_SECONDS},
        )
        once_stopped = closing.enter_context(ExitStack())
        stack = closing.enter_context(running_stack(options, say=self.say, say_step=lambda _step: None))
        return Submitting(
            client=closing.enter_context(make_client(stack.base_url, stack.api_key)),
            window=_WINDOW,
            say=self.say,
            on_poll=stack.supervisor.tend_or_stop,
            waiting=Waiting(is_budget_alone=True),  # the worker is being started
            on_refusal=lambda: once_stopped.callback(run.forget_stack),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A shared server."""

    client: OpenAI
    model: str
    window: str
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        return f"{self.client.base_url} {self.model}"

    def check_schema(self, schema: Any) -> None:
        """Leave it to the server, which knows what its engine can enforce."""

    def require_valid(self, stage: Stage) -> None:
        """Leave it to the server, which has its own limits."""

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:
        return count_on_server(self.client, self.model, lines, endpoint=endpoint, window=self.window)

    def connect(self, run: RunFolder, closing: ExitStack) -> Connection:

        return Submitting(client=self.client, window=self.window, say=self.say)


def this_machine(model: str | None, *, say: Callable[[str], None]) -> ThisMachine:
    """Return this machine with a model: a folder, a file, a Hugging Face id or `demo`. Raises InputError."""
    return ThisMachine(served=choose_model(None if model == DEMO_NAME else model), say=say)


def server(client: OpenAI, model: str | None, *, window: str, say: Callable[[str], None]) -> Server:
    """Return a server with `model`, by default its only model. Raises InputError that lists its models."""
    with server_errors_as_sentences(client):
        names = [one.id for one in client.models.list()]
    if model is None and len(names) == 1:
        model = names[0]
    if model is None or model not in names:
        served = ", ".join(names) or "none yet"
        problem = "no model was given" if model is None else f"there is no model {model!r}"
        raise InputError(
            f"{problem} at {client.base_url}. Name one with --model; it serves: {served}. A model that is still "
            "loading is not listed: run the same command again later.",
            param="model",
        )
    return Server(client=client, model=model, window=window, say=say)


def place_of(model: str | None, *, base_url: str | None, window: str) -> Place:
    """Return the server if one is named, otherwise this machine."""
    if base_url is not None:
        os.environ["TOKENMILL_BASE_URL"] = base_url
    if not os.environ.get("TOKENMILL_BASE_URL"):
        return this_machine(model, say=say)
    return server(client_from_environment(), model, window=window, say=say)
