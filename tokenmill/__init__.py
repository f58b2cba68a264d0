"""Tables through a model, from Python: `tokenmill.map(rows, prompt=…, schema=…, model="demo")`.

The front door alone: what it does is done by `cli.mapping` and `pipelines`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jobs.errors import InputError, TokenmillError

if TYPE_CHECKING:
    from cli.mapping.job import MapJob
    from cli.places.session import Place

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

    With `base_url` (TOKENMILL_BASE_URL) it is a batch on that server, else everything runs on this machine, and only on
    the main thread. Interrupted, the same call goes on where it was. Raises InputError where something given cannot be
    used, TokenmillError where the batch does not complete.
    """
    from cli.mapping.job import Wanted, plan
    from tokenmill.tables import table_of

    table = table_of(rows)
    given = {"max_tokens": max_tokens, "temperature": temperature}
    wanted = Wanted(
        prompt=_prompt(prompt),
        model="",
        schema=_schema(schema),
        params={**(params or {}), **{name: value for name, value in given.items() if value is not None}},
        prefix=prefix,
    )
    job = plan(table.source, wanted, table.form)
    place = _place(model, base_url=base_url, api_key=api_key, window=window)
    found: _Table = table.extended(job.shape, _added(_for(job, place), place, data_dir=data_dir))
    return found


def _for(job: MapJob, place: Place) -> MapJob:
    from dataclasses import replace

    return replace(job, ask=replace(job.ask, model=place.model))


def _added(job: MapJob, place: Place, *, data_dir: str | Path | None) -> list[dict[str, Any]]:
    """Return the new columns' values, row by row."""
    import typer

    from cli.mapping.running import check_schema, compute, folder_of
    from cli.up_command import default_data_dir

    check_schema(job, place)
    folder = folder_of(job, place, base=Path(data_dir) if data_dir else default_data_dir(), output="")
    with folder.run.held():
        try:
            rendered = compute(job, place, folder, say=_say)
        except typer.Exit:  # a signal ended the stack on this machine
            raise KeyboardInterrupt from None
        names = tuple(job.shape.typed)
        added = [{name: row[name] for name in names} for row in folder.rows(job, rendered)]
        folder.remove()
    return added


def _place(model: str | None, *, base_url: str | None, api_key: str | None, window: str) -> Place:
    from cli.client import client_for
    from cli.places.place import server, this_machine

    base_url = base_url or os.environ.get("TOKENMILL_BASE_URL")
    if not base_url:
        return this_machine(model, say=_say)
    return server(client_for(base_url, api_key), model, window=window, say=_say)


def _prompt(prompt: str | Path) -> str:
    if not isinstance(prompt, Path):
        return prompt
    try:
        return prompt.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the prompt {prompt}: {error}. Give the path of a UTF-8 file.") from None


def _schema(schema: Mapping[str, Any] | type | str | Path | None) -> Any:
    """Return a JSON schema as it is, from a file, or of a pydantic model."""
    import json

    if schema is None or isinstance(schema, Mapping):
        return None if schema is None else dict(schema)
    if isinstance(schema, type):
        describe = getattr(schema, "model_json_schema", None)
        if describe is None:
            raise InputError(f"the schema is the class {schema.__name__}. Give a pydantic model, a dict, or a path.")
        return describe()
    try:
        return json.loads(Path(schema).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the schema {schema}: {error}") from None


def _say(message: str) -> None:
    sys.stderr.write(f"tokenmill: {message}\n")
