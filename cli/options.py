"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FailOnErrors = Annotated[bool, typer.Option("--fail-on-errors", help="Exit with status 3 if a line failed.")]
OfCollection = Annotated[str | None, typer.Option("--collection", metavar="COLLECTION_ID", help="Of this one.")]
Newest = Annotated[int, typer.Option(min=1, help="The newest ones, at most so many.")]
