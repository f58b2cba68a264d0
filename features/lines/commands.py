"""`tokenmill batch lines`: the lines of a batch, one of them beside its request, or those that contain a text."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from cli.calls import Calls, server
from cli.ids import BatchId
from cli.table import escaped, print_fields, print_table
from jobs.errors import InputError, ServiceError

_PAGE = 200
_LIMIT = 50
_HEADER = ("number", "custom_id", "status", "code", "excerpt")
_SHOWN_EXCERPT = 100


def lines(
    batch_id: BatchId,
    *,
    failed: Annotated[bool | None, typer.Option("--failed/--completed", help="Only these. [default: both]")] = None,
    code: Annotated[str | None, typer.Option(help="Only lines with this error code.")] = None,
    status: Annotated[
        int | None, typer.Option(min=100, max=599, help="Only lines whose response has this status.")
    ] = None,
    after: Annotated[int | None, typer.Option(min=0, help="Only lines after this number. [default: 0]")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Number of lines. [default: 50]")] = None,
    number: Annotated[int | None, typer.Option(min=1, help="One line: its result beside its request.")] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only lines whose custom_id, answer or error contains it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON; with --grep an object a line.")] = False,
) -> None:
    """Show lines that have a result, in the order of the input; of a running batch, those finished so far."""
    wanted = {"failed": failed, "code": code, "status": status, "after": after}
    path, most = f"/batches/{batch_id}/lines", _LIMIT if limit is None else limit
    with server() as calls:
        if number is not None:
            _require_alone(wanted | {"limit": limit, "grep": grep})
            _print_one(calls.get(f"{path}/{number}"), as_json=as_json)
        elif grep is not None:
            _search(calls, path, {**wanted, "text": grep}, limit=most, as_json=as_json)
        else:
            _list(calls, path, wanted, limit=most, as_json=as_json)


def _require_alone(others: Mapping[str, object]) -> None:
    given = [f"--{name}" for name, value in others.items() if value is not None]
    if given:
        raise InputError(f"--number shows one line, and {' and '.join(given)} select lines. Leave one of them out.")


def _print_one(line: Mapping[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(line, indent=2))
        return
    shown = {name: line[name] for name in ("number", "custom_id", "status_code", "code", "size_bytes")}
    print_fields({name: value for name, value in shown.items() if value is not None})
    for name, missing in (("request", line["no_request"]), ("result", "too_long")):
        value = line[name]
        print(f"\n{name}:")
        print(f"  {missing}" if value is None else _readable(value))


def _readable(value: Any) -> str:
    """Return JSON on several lines, its invisible characters escaped."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return "\n".join(map(escaped, text.split("\n")))


def _list(calls: Calls, path: str, wanted: Mapping[str, Any], *, limit: int, as_json: bool) -> None:
    pages = list(_pages(calls, path, wanted, limit=limit))
    found = [line for page in pages for line in page["data"]]
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_table(_HEADER, map(_row, found), numbers=("number",))
    if pages[-1]["has_more"]:
        _say_more(pages[-1]["next_after"])


def _pages(calls: Calls, path: str, wanted: Mapping[str, Any], *, limit: int) -> Iterator[dict[str, Any]]:
    """Yield pages until they have `limit` lines; a page may have fewer than requested, and more follow."""
    query = dict(wanted)
    has_more = True
    while has_more and limit:
        page = calls.get(path, limit=min(limit, _PAGE), **query)
        yield page
        limit -= len(page["data"])
        query["after"], has_more = page["next_after"], page["has_more"]


def _search(calls: Calls, path: str, query: Mapping[str, Any], *, limit: int, as_json: bool) -> None:
    """Print hits as they are found."""
    if not as_json:
        print("\t".join(_HEADER))
    for row in calls.rows(f"{path}/grep", limit=limit, **query):
        if row["error"] is not None:
            raise ServiceError(row["error"]["message"])
        if row["hit"] is not None:
            hit = row["hit"]
            print(json.dumps(hit) if as_json else "\t".join(escaped(str(cell)) for cell in _row(hit)), flush=True)
        elif row["progress"]["has_ended"]:
            if row["progress"]["has_more"]:
                _say_more(row["progress"]["next_after"])
            return
    raise ServiceError("the answer broke off before the search ended; try again")


def _row(line: Mapping[str, Any]) -> tuple[object, ...]:
    excerpt = " ".join((line["excerpt"] or "").split())
    status = line["status_code"]
    return (
        line["number"],
        line["custom_id"] or "",
        "" if status is None else status,
        line["code"] or "",
        excerpt[:_SHOWN_EXCERPT],
    )


def _say_more(after: int) -> None:
    print(f"There are more lines: --after {after}", file=sys.stderr)
