"""An option of `tokenmill extract run` and `index`."""

from __future__ import annotations

from typing import Annotated

import typer

Keep = Annotated[
    bool,
    typer.Option("--keep", help="Keep the extraction and its documents at the service once the outputs are written."),
]
