"""Arguments of the commands of pipelines, schedules and runs, and objects by kind and name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cli.calls import named, server
from cli.ids import require_id

Name = Annotated[str, typer.Argument(help="Name or id.", callback=require_id)]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID", callback=require_id)]


def print_object(kind: str, name: str) -> None:
    """Print an object as JSON."""
    with server() as calls:
        print(json.dumps(calls.get(named(kind, name)), indent=2))


def delete_object(kind: str, name: str) -> None:
    """Delete an object, and print that."""
    with server() as calls:
        calls.delete(named(kind, name))
    print(f"deleted {name}")
