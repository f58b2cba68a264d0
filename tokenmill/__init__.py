"""Tables through a model, from Python: `tokenmill.map(rows, prompt=…, schema=…, model="demo")`.

The front door alone. Nothing outside this folder is imported into a user's process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tokenmill.errors import InputError, TokenmillError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["InputError", "TokenmillError", "map"]

_Table = TypeVar("_Table")


def map(
    rows: _Table,
    *,
    prompt: str | Path,
    schema: Mapping[str, Any] | type | str | Path | None = None,
    model: str | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    params: Mapping[str, Any] | None = None,
    prefix: str = "",
    window: str = "24h",
    data_dir: str | Path | None = None,
) -> _Table:
    """Return the rows with the columns of their answers, as the kind of table that was given.

    `rows`: a list of dicts, a pyarrow.Table, or a pandas or polars DataFrame. `prompt`: a template, or the path of one.
    `schema`: a JSON schema, the path of one, or a pydantic model; without one the answers are texts, in `answer`. A row
    that failed keeps its place, and its column `error` says why.

    With `base_url` (TOKENMILL_BASE_URL) it is a batch on that server, else everything runs on this machine. A process
    of its own computes it. Interrupted, the same call goes on where it was. Raises InputError where something given
    cannot be used, TokenmillError where the batch does not complete.
    """
    from tokenmill.mapping import mapped
    from tokenmill.prompts import prompt_of, schema_of
    from tokenmill.tables import table_of

    table = table_of(rows)
    lengths = {"max_tokens": max_tokens, "temperature": temperature}
    wanted = {
        "prompt": prompt_of(prompt),
        "schema": schema_of(schema),
        "params": {**(params or {}), **{name: value for name, value in lengths.items() if value is not None}},
        "prefix": prefix,
    }
    call = {
        "wanted": wanted,
        "model": model,
        "base_url": base_url or os.environ.get("TOKENMILL_BASE_URL"),
        "api_key": api_key,
        "window": window,
        "data_dir": None if data_dir is None else str(data_dir),
    }
    extended: _Table = mapped(table, call)
    return extended
