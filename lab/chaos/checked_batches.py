"""Batches whose answers are known: their end is awaited, and their files and bill are checked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lab.chaos.expected import ENDPOINT, Answer, Found, Lines, check_files
from lab.chaos.patience import PatientClient, patiently
from lab.chaos.stack import MODEL_FOLDER, Stack

ENDS = ("completed", "failed", "expired", "cancelled")
_NOT_RUN = {"cancelled": "batch_cancelled", "expired": "batch_expired"}
_LEDGER = """
    SELECT coalesce(sum(num_results), 0)::bigint, coalesce(sum(input_tokens), 0)::bigint,
        coalesce(sum(output_tokens), 0)::bigint
    FROM ledger WHERE batch_id = %s AND num_results > 0
"""


def submit(client: PatientClient, lines: Lines, **more: Any) -> str:
    """Create the batch of lines, once however often the call is repeated; return its id."""
    return submit_content(client, lines.content(), endpoint=ENDPOINT, key=lines.name, **more)


def submit_content(client: PatientClient, content: bytes, *, endpoint: str, key: str, **more: Any) -> str:
    """Create a batch with this input under an idempotency key; return its id."""
    file = client.call("POST", "/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)})
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h", **more}
    return str(client.call("POST", "/batches", json=body, headers={"Idempotency-Key": key})["id"])


def until_ended(client: PatientClient, batch_id: str) -> dict[str, Any]:
    """Return a batch once it has ended."""
    return client.ended(f"/batches/{batch_id}", lambda batch: batch["status"] in ENDS)


def check(
    stack: Stack,
    client: PatientClient,
    batch: dict[str, Any],
    lines: Lines,
    *,
    answers: Mapping[str, Answer] | None = None,
) -> tuple[Found, list[str]]:
    """Return the content of an ended batch's files and where they, its counters or its bill are wrong."""
    output, errors = contents(client, batch)
    not_run = _NOT_RUN.get(batch["status"])
    count = partial(count_tokens, folder=stack.model_folder)
    found = check_files(lines, output, errors, not_run=not_run, count_tokens=count, answers=answers)
    problems = [*found.problems, *_compare(stack, batch, lines, found)]
    return found, [f"batch {lines.name} ({batch['id']}, {batch['status']}): {problem}" for problem in problems]


def contents(client: PatientClient, batch: dict[str, Any]) -> tuple[bytes, bytes]:
    """Return the output file and the error file, empty where there is none."""
    names = ("output_file_id", "error_file_id")
    output, errors = (b"" if batch[name] is None else client.content(batch[name]) for name in names)
    return output, errors


def _compare(stack: Stack, batch: dict[str, Any], lines: Lines, found: Found) -> list[str]:
    """Return where counters and ledger differ from the files."""
    problems = []
    counts, files = batch["request_counts"], (lines.num, found.num_answers, found.num_not_run)
    if (counts["total"], counts["completed"], counts["failed"]) != files:
        problems.append(f"its counts are {counts}, but of {lines.num} lines its files have {files[1]} and {files[2]}")
    billed = patiently(lambda: stack.query(_LEDGER, batch["id"])[0])
    answered = (found.num_answers, *found.num_tokens)
    if billed != answered:
        problems.append(f"billed answers and tokens are {billed}, but its file has {answered}")
    return problems


@lru_cache(maxsize=1)
def _tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def count_tokens(prompt: str, *, folder: Path = MODEL_FOLDER) -> int:
    """Return the number of a model's tokens in a prompt."""
    return len(_tokenizer(folder).encode(prompt).ids)
