"""Opens a store by its URL."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from obstore.exceptions import BaseError
from obstore.store import from_url

from features.pipelines.external.bucket import Bucket, problem_of
from features.pipelines.external.folder import LocalFolder
from features.pipelines.external.store import ExternalStore
from jobs.errors import InputError

_ENV = "env:"


def open_store(name: str, url: str, options: Mapping[str, str], *, timeout_seconds: float) -> ExternalStore:
    """Open a registered store. Raise InputError if its URL or an option is wrong."""
    scheme, separator, rest = url.partition("://")
    if scheme == "file" and separator:
        if not rest.startswith("/") or options:
            raise InputError(f"The store {name!r} is {url!r}; give file:///folder and no options.", param="url")
        return LocalFolder(name, Path(rest))
    if scheme not in {"s3", "s3a", "gs", "az"} or not separator:
        raise InputError(
            f"The store {name!r} is {url!r}; give file:///absolute/folder or s3://bucket/prefix (or gs://, az://).",
            param="url",
        )
    values = {key: _value(name, key, value) for key, value in options.items()}
    silence = timedelta(seconds=timeout_seconds)
    is_plain = values.pop("allow_http", "false").lower() == "true"
    client: Any = {"connect_timeout": silence, "read_timeout": silence, "timeout": 6 * silence, "allow_http": is_plain}
    retry: Any = {"max_retries": 3, "retry_timeout": silence}
    try:
        store = from_url(url, client_options=client, retry_config=retry, **cast(Any, values))
    except (BaseError, ValueError, TypeError) as error:
        raise InputError(f"The store {name!r} cannot be opened: {problem_of(error)}.", param="url") from None
    return Bucket(name, store)


def _value(name: str, key: str, value: str) -> str:
    if not value.startswith(_ENV):
        return value
    variable = value.removeprefix(_ENV)
    setting = os.environ.get(variable)
    if setting is None:
        raise InputError(f"The store {name!r} takes {key} from {variable}, which is not set for this process.")
    return setting
