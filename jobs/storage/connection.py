"""Connections to an object store: its URL, its timeouts, and the translation of its failures.

Independent of objects.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from jobs.errors import InputError, ServiceError, StorageFullError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SILENCES_A_REQUEST = 6
"""Timeouts that a whole request may take, body included: 280 KB/s for a chunk of 16 MiB, by default."""
ENVIRONMENT = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
_NO_ROOM = ("No space left", "Disk quota exceeded", "StorageFull", "507 Insufficient Storage", "QuotaExceeded")
"""Error texts of full file systems and buckets."""
FROM_ENVIRONMENT = ("allow_http", "allow_invalid_certificates", "proxy_url", "proxy_excludes", "user_agent")
"""Options read from the environment, each after its store's prefix."""


class AbsentError(ServiceError):
    """The store answers that a thing is missing; whether it is our store was not checked."""


def check_url(url: str) -> None:
    """Raise InputError for a URL that names no store."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"file", "s3", "s3a", "gs", "az", "memory"}:
        raise InputError(
            f"TOKENMILL_STORAGE_URL is {url!r}; give file:///absolute/directory or s3://bucket/prefix",
            param="storage_url",
        )
    if scheme == "file" and not rest.startswith("/"):
        raise InputError(f"TOKENMILL_STORAGE_URL is {url!r}; its directory must be absolute: file:///data/objects")


def open_store(url: str, *, timeout_seconds: float, max_retries: int, makes_root: bool) -> ObjectStore:
    """Open the store of a checked URL; `makes_root` creates its folder where missing.

    Raises AbsentError where it is missing, and ServiceError.
    """
    scheme = url.partition("://")[0]
    try:
        if scheme == "memory":
            return from_url("memory:///")
        if scheme != "file":
            return from_url(url, **_network_options(scheme, timeout_seconds=timeout_seconds, max_retries=max_retries))
        if not makes_root and not Path(unquote(urlsplit(url).path)).is_dir():
            raise AbsentError(f"the folder of the object store {url} is not there; mount it, or make it")
        return LocalStore.from_url(url, mkdir=makes_root)
    except (BaseError, OSError, ValueError) as error:
        raise store_failure(url, error) from error


def _network_options(scheme: str, *, timeout_seconds: float, max_retries: int) -> Any:
    """Return the timeouts and retries of requests.

    obstore ignores the environment's settings of its HTTP client once options are given, so they are read here.
    """
    silence = timedelta(seconds=timeout_seconds)
    variables = {name: os.environ.get(ENVIRONMENT[scheme] + name.upper()) for name in FROM_ENVIRONMENT}
    return {
        "client_options": {
            **{name: value for name, value in variables.items() if value is not None},
            "connect_timeout": silence,
            "read_timeout": silence,
            "timeout": _SILENCES_A_REQUEST * silence,
        },
        # Retries are for immediate refusals: none follows a timeout.
        "retry_config": {"max_retries": max_retries, "retry_timeout": silence},
    }


def store_failure(url: str, error: Exception) -> ServiceError:
    """Return a store's error as one sentence for operators."""
    cause = str(error).strip().split("\n")[0]
    if any(refusal in str(error) for refusal in _NO_ROOM):
        return StorageFullError(f"the object store {url} is full; free some space, or change TOKENMILL_STORAGE_URL")
    return ServiceError(f"the object store {url} failed: {cause}; check TOKENMILL_STORAGE_URL and its access rights")


def unlisted_uploads(url: str) -> str | None:
    """Return the prefix where a bucket may keep parts of killed uploads that cannot be listed from here.

    None where there are none: a local store lists them, and Azure drops them after a week. obstore 0.12 has no call for
    it, and does not expose the credentials that it finds.
    """
    scheme, _, rest = url.partition("://")
    if scheme not in {"s3", "s3a", "gs"}:
        return None
    _, _, prefix = rest.strip("/").partition("/")
    return f"{prefix}/" if prefix else ""
