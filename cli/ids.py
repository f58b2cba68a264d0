"""Arguments with ids of objects on a server."""

from __future__ import annotations

from typing import Annotated

import typer


def require_id(value: str) -> str:
    """Refuse an empty id, such as a script passes that has lost it."""
    if not value.strip():
        raise typer.BadParameter("it is empty; give the id that the server returned")
    return value


BatchId = Annotated[str, typer.Argument(metavar="BATCH_ID", callback=require_id)]
FileId = Annotated[str, typer.Argument(metavar="FILE_ID", callback=require_id)]
