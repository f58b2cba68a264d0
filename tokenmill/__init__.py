"""Run tables through a model from Python: `tokenmill.map(rows, prompt=…, schema=…, model="demo")`.

Only the entry point. Nothing outside this folder is imported into a user's process.
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
    thoughts: bool = False,
    prefix: str = "",
    window: str = "24h",
    data_dir: str | Path | None = None,
) -> _Table:
    """Return the rows with the columns of their answers, as the same kind of table.

    `rows`: a list of dicts, a pyarrow.Table, or a pandas or polars DataFrame. `prompt`: a template, or the path of one.
    `schema`: a JSON schema, the path of one, or a pydantic model; without one the answers are texts, in the column
    `answer`. With `thoughts` those of a model that thinks are a column too. A failed row keeps its place, and its
    column `error` has the reason.

    With `base_url` (TOKENMILL_BASE_URL) the rows run as a batch on that server, otherwise on this machine, in a
    separate process. After an interrupt the same call continues where it stopped. Raises InputError for unusable
    arguments, TokenmillError where the batch does not complete.
    """
    from tokenmill.mapping import mapped
    from tokenmill.prompts import prompt_of, schema_of
    from tokenmill.tables import table_of

    table = table_of(rows)
    lengths = {"max_tokens": max_tokens, "temperature": temperature}
    request = {
        "prompt": prompt_of(prompt),
        "schema": schema_of(schema),
        "params": {**(params or {}), **{name: value for name, value in lengths.items() if value is not None}},
        "thoughts": thoughts,
        "prefix": prefix,
    }
    call = {
        "wanted": request,
        "model": model,
        "base_url": base_url or os.environ.get("TOKENMILL_BASE_URL"),
        "api_key": api_key,
        "window": window,
        "data_dir": None if data_dir is None else str(data_dir),
    }
    extended: _Table = mapped(table, call)
    return extended
