"""How an object store is reached: by its URL, within which times, and what its failures are called.

Knows no object.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url

from jobs.errors import InputError, ServiceError, StorageFullError

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_SILENCES_A_REQUEST = 6
"""How many of its silences a whole request may take, body included: 280 KB/s for a chunk of 16 MiB, by default."""
ENVIRONMENT = {"s3": "AWS_", "s3a": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
FROM_ENVIRONMENT = ("allow_http", "allow_invalid_certificates", "proxy_url", "proxy_excludes", "user_agent")
"""What of it is read from the environment, each after its store's prefix."""


def open_store(url: str, *, timeout_seconds: float, max_retries: int) -> ObjectStore:
    """Open the store of a URL. Raises InputError for a URL that is none, ServiceError where a folder cannot be made."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in {"file", "s3", "s3a", "gs", "az", "memory"}:
        raise InputError(
            f"TOKENMILL_STORAGE_URL is {url!r}; give file:///absolute/directory or s3://bucket/prefix",
            param="storage_url",
        )
    try:
        if scheme == "memory":
            return from_url("memory:///")
        if scheme != "file":
            return from_url(url, **_network_options(scheme, timeout_seconds=timeout_seconds, max_retries=max_retries))
        if not rest.startswith("/"):
            raise InputError(f"TOKENMILL_STORAGE_URL is {url!r}; its directory must be absolute: file:///data/objects")
        return LocalStore.from_url(url, mkdir=True)
    except (BaseError, OSError, ValueError) as error:
        raise store_failure(url, error) from error


def _network_options(scheme: str, *, timeout_seconds: float, max_retries: int) -> Any:
    """Return how long requests take and how often they are sent.

    obstore drops what the environment says of its HTTP client once options are given, so that is read here.
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
        # Retries are for what is refused at once: after one silence there is none.
        "retry_config": {"max_retries": max_retries, "retry_timeout": silence},
    }


def store_failure(url: str, error: Exception) -> ServiceError:
    """Return what a store's error means to whoever runs the service, in one sentence."""
    cause = str(error).strip().split("\n")[0]
    if "No space left" in str(error) or "Disk quota exceeded" in str(error):
        return StorageFullError(
            f"the object store {url} is full; free some space, or point TOKENMILL_STORAGE_URL somewhere else"
        )
    return ServiceError(f"the object store {url} failed: {cause}; check TOKENMILL_STORAGE_URL and its access rights")
