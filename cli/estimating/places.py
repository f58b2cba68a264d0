"""Counts lines where they would run: by the files of a model on this machine, or by a server's estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.batches.creating import estimate
from cli.batches.fields import estimate_fields
from cli.client import server_errors_as_sentences
from cli.disk.input_check import check_file
from cli.estimating.estimate import Counted
from cli.file_commands import upload_file
from jobs.errors import InputError

if TYPE_CHECKING:
    from openai import OpenAI

    from cli.served_model import ServedModel

_QUIET_SECONDS = 10.0  # an idle worker counts a thousand prompts per second


def count_here(served: ServedModel, lines: Path, *, endpoint: str) -> Counted:
    """Count with the model's files. Raises InputError for invalid lines."""
    from cli.estimating.counting import count_bytes, count_lines, prompts_of

    scan = check_file(lines, endpoint=endpoint, models={served.name})
    prompts = prompts_of(served.path)
    counts = count_bytes(lines) if prompts is None else count_lines(lines, prompts, endpoint=endpoint)
    fields = {"model": served.path, "lines": f"{scan.num_requests:,}"}
    return replace(counts, fields=fields | dict(counts.fields))


def count_on_server(client: OpenAI, model: str, lines: Path, *, endpoint: str, window: str) -> Counted:
    """Let a server estimate a batch of the lines. Raises InputError if it would not run them."""
    call: dict[str, Any] = {"completion_window": window, "endpoint": endpoint, "invalid_lines": "fail"}
    with server_errors_as_sentences(client):
        # Without a worker for the model nothing counts tokens: the estimate is then by bytes.
        is_served = getattr(client.models.retrieve(model), "max_model_len", None) is not None
        uploaded = upload_file(client, lines, purpose="batch")
        try:
            call |= {"input_file_id": uploaded.id, "exact": is_served}
            result = estimate(client, call, quiet_seconds=_QUIET_SECONDS)
        finally:
            client.files.delete(uploaded.id)
    if result["verdict"] in ("fails", "refused"):
        raise InputError(f"the server would not run this: {_why(result)}")
    shown = estimate_fields(result)
    return Counted(
        num_lines=result["requests"],
        input_tokens=result["input_tokens"],
        output_tokens=result["output_tokens"],
        basis=shown.pop("counted"),
        thoughts=result.get("reasoning_tokens_per_line"),  # an older server has no such field
        fields={name: text for name, text in shown.items() if name != "tokens"},
    )


def _why(result: Mapping[str, Any]) -> str:
    """Return why the batch of an estimate would not run, with the first bad line."""
    first = result["errors"]["data"][0] if result["errors"] else None
    return str(result["reason"]) if first is None else f"{result['reason']}; line {first['line']}: {first['message']}"
