"""The two places there are: a stack on this machine, and a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.batches.creating import estimate
from cli.batches.fields import estimate_fields
from cli.client import client_from_environment, make_client, server_errors_as_sentences
from cli.disk.input_check import check_file, require_valid
from cli.embedded.sockets import free_port
from cli.file_commands import upload_file
from cli.places.estimate import Counted
from cli.places.options import say
from cli.places.run_folder import RunFolder
from cli.places.session import Connection, Place
from cli.places.stage import Stage
from cli.places.submission import Submitting
from cli.served_model import DEMO_NAME, choose_model
from cli.watching.progress import Waiting
from features.pipelines.rows.lines.requests import ENDPOINT
from jobs.errors import InputError
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.served_model import ServedModel

_WINDOW = "30d"  # nobody waits on a deadline here; it only has to outlast the run
_MAX_DEATHS = 5
_QUIET_SECONDS = 10.0  # a worker that has time counts a thousand prompts in one
# A stopped run gives up its unfinished lines rather than make the user wait; finished ones are already saved.
_DRAIN_SECONDS = "3"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisMachine:
    """A stack of the run's own."""

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
            raise InputError(f"the schema cannot be kept: {error}", param="schema", code="invalid_schema") from None

    def require_valid(self, stage: Stage) -> None:

        require_valid(stage.lines, endpoint=stage.endpoint, model=self.model)

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:

        from cli.places.counting import count_bytes, count_lines, prompts_of

        scan = check_file(lines, endpoint=endpoint, models={self.model})
        prompts = prompts_of(self.served.path)
        found = count_bytes(lines) if prompts is None else count_lines(lines, prompts, endpoint=endpoint)
        fields = {"model": self.served.path, "lines": f"{scan.num_requests:,}"}
        return replace(found, fields=fields | dict(found.fields))

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
    """A server that others use, too."""

    client: OpenAI
    model: str
    window: str
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        return f"{self.client.base_url} {self.model}"

    def check_schema(self, schema: Any) -> None:
        """Leave it to the server: what can be kept is known where the engine is."""

    def require_valid(self, stage: Stage) -> None:
        """Leave it to the server, which has bounds of its own."""

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:

        call: dict[str, Any] = {"completion_window": self.window, "endpoint": endpoint, "invalid_lines": "fail"}
        with server_errors_as_sentences(self.client):
            # Nobody counts where no worker serves the model: what is known is then by bytes.
            is_served = getattr(self.client.models.retrieve(self.model), "max_model_len", None) is not None
            uploaded = upload_file(self.client, lines, purpose="batch")
            try:
                call |= {"input_file_id": uploaded.id, "exact": is_served}
                found = estimate(self.client, call, quiet_seconds=_QUIET_SECONDS)
            finally:
                self.client.files.delete(uploaded.id)
        if found["verdict"] in ("fails", "refused"):
            raise InputError(f"the server would not run this: {_why(found)}")
        shown = estimate_fields(found)
        return Counted(
            num_lines=found["requests"],
            input_tokens=found["input_tokens"],
            output_tokens=found["output_tokens"],
            basis=shown.pop("counted"),
            fields={name: text for name, text in shown.items() if name != "tokens"},
        )

    def connect(self, run: RunFolder, closing: ExitStack) -> Connection:

        return Submitting(client=self.client, window=self.window, say=self.say)


def _why(found: Mapping[str, Any]) -> str:
    """Return why an estimate's batch would not run, with the first bad line."""
    first = found["errors"]["data"][0] if found["errors"] else None
    return str(found["reason"]) if first is None else f"{found['reason']}; line {first['line']}: {first['message']}"


def this_machine(model: str | None, *, say: Callable[[str], None]) -> ThisMachine:
    """Return this machine with a folder, a file, an id of Hugging Face or `demo`. Raises InputError."""
    return ThisMachine(served=choose_model(None if model == DEMO_NAME else model), say=say)


def server(client: OpenAI, model: str | None, *, window: str, say: Callable[[str], None]) -> Server:
    """Return a server that serves `model`; without one, its only one. Raises InputError that lists what it serves."""
    with server_errors_as_sentences(client):
        names = [one.id for one in client.models.list()]
    if model is None and len(names) == 1:
        model = names[0]
    if model is None or model not in names:
        served = ", ".join(names) or "none yet"
        wanted = "no model was given" if model is None else f"there is no model {model!r}"
        raise InputError(
            f"{wanted} at {client.base_url}. Say which with --model; it serves: {served}. One that is still being "
            "loaded is not among them yet: give the same command again then.",
            param="model",
        )
    return Server(client=client, model=model, window=window, say=say)


def place_of(model: str | None, *, base_url: str | None, window: str) -> Place:
    """Return a server where one is named, and else this machine."""
    if base_url is not None:
        os.environ["TOKENMILL_BASE_URL"] = base_url
    if not os.environ.get("TOKENMILL_BASE_URL"):
        return this_machine(model, say=say)
    return server(client_from_environment(), model, window=window, say=say)
