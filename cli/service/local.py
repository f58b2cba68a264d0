"""A service on this machine: the one that runs on the data directory, or one that is started for the command."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.client import make_client
from cli.data_dir import DataDir, InUseError
from cli.disk.input_check import check_content, require_valid
from cli.embedded.sockets import free_port
from cli.estimating.places import count_here, count_on_server
from cli.service.running import find_running, using, without_users
from cli.service.service import Service
from cli.supervisor import StopRequestedError
from cli.watching.progress import Waiting
from features.pipelines.rows.lines.requests import ENDPOINT
from jobs.errors import InputError
from jobs.lines.body_checks import BodyError
from jobs.lines.body_structure import Structure

if TYPE_CHECKING:
    from cli.estimating.estimate import Counted
    from cli.served_model import ServedModel
    from cli.supervisor import Supervisor

_WINDOW = "30d"  # there is no deadline here; it only has to outlast the work
_MAX_DEATHS = 5
_DRAIN_SECONDS = "3"
"""A stopped command drops its unfinished lines rather than make the user wait; finished ones are saved."""
_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTarget:
    """A model of a service on a data directory."""

    served: ServedModel
    data_dir: Path

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

    def require_valid(self, lines: Path, *, endpoint: str) -> None:
        require_valid(lines, endpoint=endpoint, model=self.model)

    def require_valid_lines(self, lines: Iterator[bytes], *, path: Path, endpoint: str) -> None:
        check_content(lines, path=path, endpoint=endpoint, models={self.model})

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:
        """Count by the service if it runs, otherwise by the model's files."""
        with ExitStack() as closing:
            service = self._joined(closing, lambda _: None)
            if service is None:
                return count_here(self.served, lines, endpoint=endpoint)
            return count_on_server(service.client, self.model, lines, endpoint=endpoint, window=_WINDOW)

    @contextmanager
    def opened(self, say: Callable[[str], None]) -> Iterator[Service]:
        with ExitStack() as closing:
            busy = ""
            while (service := self._joined(closing, say)) is None:
                try:
                    service = self._started(closing, say)
                    break
                except InUseError as error:  # it starts or stops
                    if error.message != busy:
                        busy = error.message
                        say(f"{busy} Waiting for it.")
                    time.sleep(_LOOK_SECONDS)
            yield service

    def _joined(self, closing: ExitStack, say: Callable[[str], None]) -> Service | None:
        """Return the running service; None if there is none. Raises InputError if it lacks the model."""
        running = find_running(self.data_dir)
        if running is None or not closing.enter_context(using(running.data_dir)):
            return None
        running.served(self.served.path, name=self.served.name)
        say(f"using the service at {running.note.base_url}")
        key = running.data_dir.key_file.read_text().strip()
        return Service(
            client=closing.enter_context(make_client(running.note.base_url, key)),
            model=self.model,
            window=_WINDOW,
            is_here=True,
            on_poll=running.require_running if running.note.is_of_command else None,
        )

    def _started(self, closing: ExitStack, say: Callable[[str], None]) -> Service:
        """Start a service until `closing` ends. Raises InUseError if another process has the folder."""
        return closing.enter_context(_own_service(self.served, self.data_dir, say))


@contextmanager
def _own_service(served: ServedModel, data_dir: Path, say: Callable[[str], None]) -> Iterator[Service]:
    """Run a service for a block, and then until no other command uses it, unless a signal ends it."""
    from cli.stack import StackOptions, running_stack

    first_step = [f"starting a database and a worker for this run, and loading {served.path}"]
    options = StackOptions(
        data_dir=data_dir,
        model=served,
        port=free_port(),
        max_deaths=_MAX_DEATHS,
        environment={"TOKENMILL_DRAIN_SECONDS": _DRAIN_SECONDS},
        is_of_command=True,
    )
    with (
        ExitStack() as alone,
        running_stack(options, say=say, say_step=lambda _: say(first_step.pop()) if first_step else None) as stack,
        make_client(stack.base_url, stack.api_key) as client,
    ):
        is_stopped = False
        try:
            yield Service(
                client=client,
                model=served.name,
                window=_WINDOW,
                is_here=True,
                on_poll=stack.supervisor.tend_or_stop,
                waiting=Waiting(is_budget_alone=True),  # the worker is being started
            )
        except (StopRequestedError, KeyboardInterrupt):
            is_stopped = True
            raise
        finally:
            if not is_stopped:
                with suppress(StopRequestedError):
                    alone.enter_context(_last_user(data_dir, stack.supervisor, say))


@contextmanager
def _last_user(root: Path, supervisor: Supervisor, say: Callable[[str], None]) -> Iterator[None]:
    """Keep the service running until no other command uses it; in the block none begins to."""
    reports = ["done; another command still uses the service that this one started. Ctrl-C ends it"]

    def wait() -> None:
        if reports:
            say(reports.pop())
        supervisor.tend_or_stop()
        time.sleep(_LOOK_SECONDS)

    with without_users(DataDir(root=root.expanduser().absolute()), wait=wait):
        yield
