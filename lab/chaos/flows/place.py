"""Where flows are created: a tenant with its stores, pipelines and an index."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from lab.chaos.patience import PatientClient
from lab.chaos.stack import Stack

_SIGNED = {"authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request"}
"""The server does not check the signature, but tells nothing without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOutcome:
    """A flow that has ended."""

    recipe: str
    flow_id: str
    status: str
    num_items: int
    """Documents, rows or lines."""
    problems: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """An index, and the names of its documents."""

    index_id: str
    titles: Sequence[str]


@dataclass(slots=True, kw_only=True)
class Place:
    """A tenant of the stack."""

    stack: Stack
    client: PatientClient
    tenant: str
    tenant_id: str
    is_tight: bool
    """Whether its budget may refuse a flow."""
    library: Library | None = None
    """Built when the first batch needs it."""
    building: threading.Lock = field(default_factory=threading.Lock)
    """Held while the library is built."""

    def may_refuse(self, reason: str) -> bool:
        """Return whether a flow may end for this reason, as the budget has no room."""
        return self.is_tight and "available: the limit is" in reason

    def put(self, key: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a file of rows into its store `documents`."""
        content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        self._call("PUT", f"{self._root('documents')}/{key}", content)

    def rows(self, key: str) -> list[dict[str, Any]]:
        """Return the rows of a file in its store `results`."""
        content = self._call("GET", f"{self._root('results')}/{key}", b"")
        return [json.loads(line) for line in content.splitlines()]

    def keys(self, folder: str) -> list[str]:
        """Return the keys of the files in a folder of its store `results`."""
        root = f"{self._root('results')}/"
        return [key.removeprefix(root) for key in self.stack.s3.keys(f"{root}{folder}/")]

    def store_url(self, name: str) -> str:
        return f"s3://{self.stack.s3.bucket}/{self._root(name)}"

    def store_options(self) -> Mapping[str, str]:
        environment = self.stack.s3.environment
        return {
            "endpoint": environment["AWS_ENDPOINT_URL"],
            "access_key_id": environment["AWS_ACCESS_KEY_ID"],
            "secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
            "region": environment["AWS_REGION"],
            "allow_http": "true",
        }

    def _root(self, name: str) -> str:
        return f"stores/{self.tenant}/{name}"

    def _call(self, method: str, key: str, body: bytes) -> bytes:
        """Call the S3 server itself, whatever trouble it has for others."""
        status, _, content = self.stack.s3.forward(method, f"/{self.stack.s3.bucket}/{key}", _SIGNED, body)
        assert status == HTTPStatus.OK, f"{method} {key} returned {status}"
        return content
