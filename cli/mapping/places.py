"""Where a job's lines are run: by a stack on this machine, or by a server. Each goes on with what it had begun."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cli.mapping.folder import MapFolder
from cli.run_state import outputs_are_intact, scan_input
from jobs.errors import InputError, ServiceError

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.served_model import ServedModel


class Place(Protocol):
    """Something that runs batches."""

    @property
    def name(self) -> str:
        """Return what tells this place and model from others: results are of one of them."""

    @property
    def model(self) -> str:
        """Return the name that lines give."""

    def check_schema(self, schema: Any) -> None:
        """Raise InputError where it is known here that a schema cannot be kept."""

    def estimate(self, lines: Path) -> dict[str, str]:
        """Return what a batch of these lines would take, as fields to be shown."""

    def run(self, folder: MapFolder) -> None:
        """Bring the results of the folder's lines into it. Raises ServiceError where the batch does not complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThisMachine:
    served: ServedModel
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        return self.served.path

    @property
    def model(self) -> str:
        return self.served.name

    def check_schema(self, schema: Any) -> None:
        from jobs.lines.body_checks import BodyError
        from jobs.lines.body_structure import Structure
        from workers.structure import Asker, structured_output

        try:
            structured_output(Structure(param="schema", fields={"json": schema}), Asker())
        except BodyError as error:
            raise InputError(f"the schema cannot be kept: {error}", param="schema", code="invalid_schema") from None

    def estimate(self, lines: Path) -> dict[str, str]:
        from cli.disk.input_check import check_file
        from pipelines.lines.requests import ENDPOINT

        scan = check_file(lines, endpoint=ENDPOINT, models={self.model})
        tokens = sum(chunk.estimated_tokens for chunk in scan.planner.finish())
        return {"model": self.served.path, "lines": f"{scan.num_requests:,}", "tokens": f"about {tokens:,} in and out"}

    def run(self, folder: MapFolder) -> None:
        from cli.disk.input_check import require_valid
        from cli.run_command import run_on_this_machine

        state = folder.run.read()
        if outputs_are_intact(state):
            return
        scan = scan_input(folder.lines)
        if state.file_id is None:  # else an earlier start has checked it
            require_valid(folder.lines, endpoint=scan.endpoint, model=self.model)
        run_on_this_machine(folder.run, folder.lines, folder.answers, scan=scan, served=self.served)


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    client: OpenAI
    model: str
    window: str
    say: Callable[[str], None]

    @property
    def name(self) -> str:
        return f"{self.client.base_url} {self.model}"

    def check_schema(self, schema: Any) -> None:
        """Leave it to the server: what can be kept is known where the engine is."""

    def estimate(self, lines: Path) -> dict[str, str]:
        from cli.batch_fields import estimate_fields
        from cli.client import server_errors_as_sentences
        from cli.file_commands import upload_file
        from pipelines.lines.requests import ENDPOINT

        with server_errors_as_sentences(self.client):
            uploaded = upload_file(self.client, lines, purpose="batch")
            try:
                call = {"input_file_id": uploaded.id, "completion_window": self.window, "endpoint": ENDPOINT}
                found = self.client.post("/estimates", cast_to=dict[str, Any], body=call)
            finally:
                self.client.files.delete(uploaded.id)
        if found["errors"]:
            first = found["errors"]["data"][0]
            raise InputError(f"the server refuses line {first['line']}: {first['message']}")
        return estimate_fields(found)

    def run(self, folder: MapFolder) -> None:
        from cli.client import server_errors_as_sentences
        from cli.run_command import collect, find_or_submit
        from cli.watch import describe_errors, watch_batch

        if outputs_are_intact(folder.run.read()):
            return
        scan = scan_input(folder.lines)
        with server_errors_as_sentences(self.client):
            batch = find_or_submit(self.client, folder.run, folder.lines, scan=scan, window=self.window)
            try:
                batch = watch_batch(self.client, batch.id)
            except KeyboardInterrupt:
                self.say(
                    f"{batch.id} goes on. The same command waits for it again; or: tokenmill batch cancel {batch.id}"
                )
                raise
            if batch.status == "completed":
                collect(self.client, batch, folder.run, folder.answers)
        if batch.status != "completed":
            raise ServiceError(f"the batch {batch.status}:\n{describe_errors(batch)}")


def this_machine(model: str | None, *, say: Callable[[str], None]) -> ThisMachine:
    """Return this machine with a folder, a file, an id of Hugging Face or `demo`. Raises InputError."""
    from cli.served_model import DEMO_NAME, choose_model

    return ThisMachine(served=choose_model(None if model == DEMO_NAME else model), say=say)


def server(client: OpenAI, model: str | None, *, window: str, say: Callable[[str], None]) -> Server:
    """Return a server that serves `model`; without one, its only one. Raises InputError that lists what it serves."""
    from cli.client import server_errors_as_sentences

    with server_errors_as_sentences(client):
        names = [one.id for one in client.models.list()]
    if model is None and len(names) == 1:
        model = names[0]
    if model is None or model not in names:
        served = ", ".join(names) or "none yet"
        wanted = "no model was given" if model is None else f"there is no model {model!r}"
        raise InputError(f"{wanted} at {client.base_url}. Say which with --model; it serves: {served}.", param="model")
    return Server(client=client, model=model, window=window, say=say)
