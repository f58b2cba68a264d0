"""`tokenmill files …`: files on a running server, through the official client."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.client import client_from_environment, server_errors_as_sentences
from cli.data_dir import default_data_dir
from cli.disk.download import download as fetch
from cli.disk.input_file import plain, raw
from cli.disk.output_path import require_replaceable
from cli.disk.standard_input import STANDARD_INPUT, from_stdin
from cli.disk.upload import upload as send
from cli.ids import FileId
from cli.options import AsJson, Newest
from cli.table import print_table, when
from jobs.errors import InputError

if TYPE_CHECKING:
    from openai import OpenAI

app = typer.Typer(help="Upload, list, download and delete files on a running server.", no_args_is_help=True)


@app.command()
def upload(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="- for standard input.")],
    purpose: Annotated[str, typer.Option(help="Purpose of the file.")] = "batch",
) -> None:
    """Upload a file and print its id; an interrupted upload of a large file resumes within an hour.

    What comes from standard input is JSONL, for --purpose batch.
    """
    if str(path) == STANDARD_INPUT and purpose != "batch":
        raise InputError(f"- is JSONL from standard input, for --purpose batch; --purpose {purpose} needs a file.")
    path = from_stdin(context, path)
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        print(upload_file(client, path, purpose=purpose).id)


def upload_file(client: OpenAI, path: Path, *, purpose: str) -> Any:
    """Stream a local file to the server, a batch's input unpacked. Raises InputError if it cannot be read.

    A large file is sent in parts: after a kill the same command sends only those that are missing.
    """
    return upload_as(client, path, purpose=purpose)


def upload_as(client: OpenAI, path: Path, *, purpose: str, name: str | None = None) -> Any:
    """Upload as `upload_file` does, under another name."""
    with plain(path, give="the path of a file") if purpose == "batch" else raw(path) as (own_name, content):
        notes = default_data_dir().expanduser() / "uploads"
        return send(client, name or own_name, content, purpose=purpose, path=path, notes=notes)


@app.command("list")
def list_(
    limit: Newest = 20,
    purpose: Annotated[str | None, typer.Option()] = None,
    as_json: AsJson = False,
) -> None:
    """List the newest files."""
    from openai import omit

    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        page = client.files.list(limit=min(limit, 10_000), purpose=omit if purpose is None else purpose)
        files = list(islice(page, limit))
    if as_json:
        print(json.dumps([file.to_dict() for file in files], indent=2))
        return
    print_table(
        ("id", "purpose", "bytes", "created", "name"),
        [(file.id, file.purpose, file.bytes, when(file.created_at), file.filename) for file in files],
        numbers=("bytes",),
    )


@app.command()
def download(
    file_id: FileId, output: Annotated[Path, typer.Option("--output", "-o", help="File, replaced once complete.")]
) -> None:
    """Download a file."""
    require_replaceable(output)
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        fetch(client, file_id, output)


@app.command()
def delete(file_id: FileId) -> None:
    """Delete a file."""
    client = client_from_environment()
    with client, server_errors_as_sentences(client):
        client.files.delete(file_id)
        print(f"deleted {file_id}")
