"""A server that `--base-url` or TOKENMILL_BASE_URL names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.client import server_errors_as_sentences
from cli.estimating.places import count_on_server
from cli.service.service import Service
from features.pipelines.rows.lines.requests import ENDPOINT
from jobs.errors import InputError

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.estimating.estimate import Counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTarget:
    """A model of a server."""

    client: OpenAI
    model: str
    window: str

    @property
    def name(self) -> str:
        return f"{self.client.base_url} {self.model}"

    def check_schema(self, schema: Any) -> None:
        """Leave it to the server, which knows what its engine can enforce."""

    def require_valid(self, lines: Path, *, endpoint: str) -> None:
        """Leave it to the server, which has its own limits."""

    def require_valid_lines(self, lines: Iterator[bytes], *, path: Path, endpoint: str) -> None:
        """Leave it to the server."""

    def count(self, lines: Path, *, endpoint: str = ENDPOINT) -> Counted:
        return count_on_server(self.client, self.model, lines, endpoint=endpoint, window=self.window)

    @contextmanager
    def opened(self, say: Callable[[str], None]) -> Iterator[Service]:
        with self.client:
            yield Service(client=self.client, model=self.model, window=self.window, is_here=False)


def remote_target(client: OpenAI, model: str | None, *, window: str) -> RemoteTarget:
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
    return RemoteTarget(client=client, model=model, window=window)
