"""Arguments that name what a server keeps."""

from __future__ import annotations

from typing import Annotated

import typer


def given(value: str) -> str:
    """Refuse what a script passes when it has lost the id."""
    if not value.strip():
        raise typer.BadParameter("it is empty; give the id that the server answered with")
    return value


BatchId = Annotated[str, typer.Argument(metavar="BATCH_ID", callback=given)]
FileId = Annotated[str, typer.Argument(metavar="FILE_ID", callback=given)]
