"""Options of commands that run many requests, and their values: texts of files, fields of requests."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.errors import InputError
from protocol.sampling import API_RANGES

Model = Annotated[str | None, typer.Option(help="As for `tokenmill run`; on a server, the name of a served model")]
BaseUrl = Annotated[
    str | None, typer.Option(help="URL of a server [default: $TOKENMILL_BASE_URL; if not set, run on this machine]")
]
Param = Annotated[
    list[str] | None, typer.Option(metavar="NAME=JSON", help="Further field of the requests; may be given again.")
]
Window = Annotated[str, typer.Option(help="On a server: time to complete in, such as 30m, 24h or 7d.")]

RunDataDir = Annotated[
    Path | None,
    typer.Option(help="Folder of the service on this machine [default: $TOKENMILL_DATA_DIR or ~/.local/share/…]"),
]
Keep = Annotated[
    bool, typer.Option("--keep", help="Keep the batch and its files at the service once the output is written.")
]


def text_of(path: Path) -> str:
    """Return a file's text. Raises InputError."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}. Give the path of a file.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {path}: it is not UTF-8 ({error.reason} at byte {error.start}).") from None


def json_params(*, max_tokens: int | None, temperature: float | None, others: list[str]) -> dict[str, Any]:
    """Return fields of a request's body; `others` are NAME=JSON. Raises InputError."""
    options = {"max_tokens": max_tokens, "temperature": temperature}
    params = {name: value for name, value in options.items() if value is not None}
    for pair in others:
        name, separator, value = pair.partition("=")
        try:
            params[name] = json.loads(value)
        except json.JSONDecodeError:
            separator = ""
        if not separator or not name:
            raise InputError(f"--param is {pair!r}. Give it as NAME=JSON, such as top_p=0.9 or 'stop=[\"END\"]'.")
        _require_in_range(name, params[name])
    return params


def _require_in_range(name: str, value: object) -> None:
    """Raise InputError for a number out of range; whether a value is of the right kind depends on the endpoint."""
    allowed = API_RANGES.get(name)
    if allowed is not None and allowed.is_kind(value) and value not in allowed:
        raise InputError(f"--param {name} is {value}. Give {allowed}.")


def say(message: str) -> None:
    """Print a message to standard error."""
    print(f"tokenmill: {message}", file=sys.stderr, flush=True)
