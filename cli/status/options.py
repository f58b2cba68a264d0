"""The option of commands about a stack."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DataDirOption = Annotated[
    Path | None, typer.Option(help="Folder of `tokenmill up` [default: $TOKENMILL_DATA_DIR or ~/.local/share/…]")
]
