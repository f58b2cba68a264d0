"""`tokenmill indexes …`: build, list, search and delete indexes of collections on a running server."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from cli.calls import named, server
from cli.ids import require_id
from cli.options import AsJson, Newest, OfCollection
from cli.stages import Listing, stage_reached
from cli.table import when
from cli.watching.stages import until_ended
from jobs.counted import counted
from jobs.errors import InputError

app = typer.Typer(help="Build and search passage indexes.", no_args_is_help=True)

IndexId = Annotated[str, typer.Argument(metavar="INDEX_ID", callback=require_id)]
CollectionId = Annotated[str, typer.Argument(metavar="COLLECTION_ID", callback=require_id)]

_COLUMNS = ("id", "created", "name", "status", "stage", "documents", "failed", "passages", "MB", "reason")
_NUMBERS = ("documents", "failed", "passages", "MB")
_LINES_SHOWN = 12


class Mode(StrEnum):
    """How passages are searched."""

    HYBRID = "hybrid"
    BM25 = "bm25"


@app.command()
def create(
    collection_id: CollectionId,
    *,
    name: Annotated[str | None, typer.Option(help="Name in lists.")] = None,
    embedding_model: Annotated[
        str | None, typer.Option(help="Embedding model.  [default: none; search by words only]")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Model whose tokenizer counts.  [default: the embedding model; without one, two bytes are a token]",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of a passage.  [default: 256, or the embedding model's limit]")
    ] = None,
    overlap_tokens: Annotated[
        int | None, typer.Option(help="Overlap of neighbouring passages.  [default: 32, or a quarter]")
    ] = None,
    language: Annotated[str, typer.Option(help="For stemming: english, german …; simple: none.")] = "simple",
    query_prefix: Annotated[str, typer.Option(help="Text that the model expects before a query.")] = "",
    document_prefix: Annotated[str, typer.Option(help="Text that the model expects before a passage.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the index is built.")] = False,
) -> None:
    """Index the current documents of a collection; print the index's id."""
    body = {
        "collection_id": collection_id,
        "name": name,
        "embedding_model": embedding_model,
        "tokenizer": tokenizer,
        "max_tokens": max_tokens,
        "overlap_tokens": overlap_tokens,
        "language": language,
        "query_prefix": query_prefix,
        "document_prefix": document_prefix,
    }
    with server() as calls:
        index = calls.post("/indexes", body)
        print(index["id"], flush=True)
        if wait:
            _wait(calls, index["id"])


@app.command("list")
def list_newest(collection: OfCollection = None, limit: Newest = 20, as_json: AsJson = False) -> None:
    """List the newest indexes, with their stages and the reason where one failed."""
    listing = Listing(path="/indexes", columns=_COLUMNS, numbers=_NUMBERS, row=_row)
    listing.print(collection=collection, limit=limit, as_json=as_json)


@app.command()
def show(index_id: IndexId) -> None:
    """Print an index as JSON: its stages, batches, sizes, and the documents that are missing."""
    with server() as calls:
        print(json.dumps(calls.get(named("indexes", index_id)), indent=2))


@app.command()
def search(
    index_id: IndexId,
    query: Annotated[str, typer.Argument(metavar="QUESTION")],
    *,
    top_k: Annotated[int, typer.Option(min=1, max=200, help="Most passages to return.")] = 5,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of all passages together.")] = None,
    mode: Annotated[
        Mode | None, typer.Option(help="[default: hybrid if the index has vectors]", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the passages that match a question, best first."""
    with server() as calls:
        passages = calls.get(
            named("indexes", index_id, "/search"),
            query=query,
            top_k=top_k,
            max_tokens=max_tokens,
            mode=None if mode is None else mode.value,
            order="score",
        )
    if as_json:
        print(json.dumps(passages, indent=2))
        return
    _print_passages(passages)


@app.command()
def delete(index_id: IndexId) -> None:
    """Delete an index, its batches and their results; its collection is kept."""
    with server() as calls:
        calls.delete(named("indexes", index_id))
    print(f"deleted {index_id}")


def _wait(calls: Any, index_id: str) -> None:
    """Show the stages until the index is built. Raises InputError if it fails."""
    index = until_ended(calls, named("indexes", index_id))
    if index["status"] != "completed":
        raise InputError(f"index {index_id} is {index['status']}: {index['reason']}")
    counts = index["document_counts"]
    print(
        f"{counted(index['num_passages'], 'passage')} of {counted(counts['completed'], 'document')}; not in it: "
        f"{counted(counts['failed'], 'document')}",
        file=sys.stderr,
    )


def _print_passages(passages: dict[str, Any]) -> None:
    if not passages["data"]:
        print("no passage matches")
        return
    for passage in passages["data"]:
        under = " > ".join(passage["headings"])
        place = f"{passage['document']} [{passage['start']}:{passage['end']}]"
        print(f"{passage['rank'] + 1}. {place}  {passage['score']:.4g}" + (f"  {under}" if under else ""))
        lines = passage["text"].splitlines()
        print(*(f"   {line}" for line in lines[:_LINES_SHOWN]), sep="\n")
        if len(lines) > _LINES_SHOWN:
            print(f"   … {len(lines) - _LINES_SHOWN} more lines")
        print()


def _row(index: dict[str, Any]) -> tuple[object, ...]:

    counts = index["document_counts"]
    return (
        index["id"],
        when(index["created_at"]),
        index["name"] or "",
        index["status"],
        stage_reached(index),
        counts["total"],
        counts["failed"],
        index["num_passages"],
        f"{index['bytes'] / 1e6:.1f}",
        index["reason"],
    )
