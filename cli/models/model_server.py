"""What answers a stack's lines: our engine, or a server of somebody else by the options of its worker. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.models.spill import SpillOptions


class EngineKind(StrEnum):
    """What answers a worker's lines."""

    OWN = "tokenmill"
    OPENAI = "openai"


EngineOption = Annotated[EngineKind, typer.Option(help="Our own engine, or any OpenAI-compatible server.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelServer:
    """The options of `tokenmill up --engine openai`."""

    url: str
    key_file: Path | None = None
    tokenizer: str | None = None
    max_model_len: int | None = None
    spill: SpillOptions | None = None

    def arguments(self, server_model: str | None) -> tuple[str, ...]:
        """Return the worker's arguments; the key itself is in none of them."""
        given = {
            "--url": self.url,
            "--server-model": server_model,
            "--key-file": None if self.key_file is None else str(self.key_file.absolute()),
            "--tokenizer": self.tokenizer,
            "--max-model-len": self.max_model_len,
        }
        options = (part for name, value in given.items() if value is not None for part in (name, str(value)))
        return ("--engine", "openai", *options, *(() if self.spill is None else self.spill.arguments()))
