"""The demo: a batch of business documents through the whole service, then fields of PDFs; both compared with the gold.

Starts the embedded stack in a temporary folder, submits examples/documents.jsonl with the official openai client, runs
`tokenmill extract` on a few generated PDFs, and keeps only the outputs. Run it with `bash scripts/demo`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import OpenAI
from rich.console import Console
from rich.table import Table

from cli.disk.download import download
from cli.embedded.sockets import free_port
from cli.served_model import choose_model
from cli.stack import RunningStack, StackOptions, running_stack
from cli.supervisor import StopRequestedError
from cli.watching.watch import describe_errors, watch_batch
from examples.field_requests import SCHEMA_PATH
from examples.make_papers import make_papers
from jobs.errors import ServiceError, TokenmillError

_EXAMPLES = Path(__file__).parent
INPUT = _EXAMPLES / "documents.jsonl"
GOLD = _EXAMPLES / "documents_gold.jsonl"
OUTPUT = _EXAMPLES.parent / ".demo" / "output.jsonl"
FIELDS = OUTPUT.with_name("fields.jsonl")
_SHOWN_DOCUMENTS = 4
_NUM_PAPERS = 5
_POLL_SECONDS = 0.1

Fields = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Results of the batch."""

    output_tokens: int
    total_tokens: int
    num_failed: int
    seconds: float
    """From the upload to the finished batch."""


def main() -> int:
    """Run the demo; return the exit status."""
    console = Console()
    started_at = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="tokenmill-demo-") as folder:
            options = StackOptions(data_dir=Path(folder), model=choose_model(None), port=free_port())
            console.print("Starting Postgres, Valkey, the API and a worker …")
            with running_stack(options, say=_say) as stack:
                console.print(f"Ready after {time.monotonic() - started_at:.1f} s. Submitting {INPUT.name} …")
                with OpenAI(base_url=stack.base_url, api_key=stack.api_key) as client:
                    outcome = _run_batch(client, on_poll=stack.supervisor.tend_or_stop)
                _report(console, outcome)
                _extract_papers(console, stack, Path(folder) / "papers")
    except StopRequestedError:
        print("demo: stopped", file=sys.stderr)
        return 130
    except TokenmillError as error:
        print(f"demo: {error.message}", file=sys.stderr)
        return 1
    return 0


def _run_batch(client: OpenAI, *, on_poll: Any) -> Outcome:
    started_at = time.monotonic()
    with INPUT.open("rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = watch_batch(client, batch.id, on_poll=on_poll)
    seconds = time.monotonic() - started_at
    if batch.status != "completed":
        raise ServiceError(f"the batch {batch.status}:\n{describe_errors(batch)}")
    OUTPUT.parent.mkdir(exist_ok=True)
    download(client, batch.output_file_id, OUTPUT)
    return Outcome(
        output_tokens=batch.usage.output_tokens,
        total_tokens=batch.usage.total_tokens,
        num_failed=batch.request_counts.failed,
        seconds=seconds,
    )


def _report(console: Console, outcome: Outcome) -> None:
    gold = read_gold(GOLD)
    answers = read_answers(OUTPUT)
    exact, total = count_exact_fields(gold, answers)
    console.print(_table(_documents(INPUT), answers))
    console.print(f"Fields equal to the gold: {exact} of {total} ({exact / total:.1%}), {len(gold)} documents")
    if outcome.num_failed:
        console.print(f"Failed lines: {outcome.num_failed}")
    console.print(
        f"Speed: {outcome.output_tokens / outcome.seconds:,.0f} output tok/s, "
        f"{outcome.total_tokens / outcome.seconds:,.0f} total tok/s ({outcome.seconds:.1f} s from upload to the end)"
    )
    console.print(f"Output: {OUTPUT}", soft_wrap=True)


def _extract_papers(console: Console, stack: RunningStack, folder: Path) -> None:
    """Run `tokenmill extract` on PDFs and a mail in layouts that the demo model was not trained on."""
    papers = list(make_papers(_NUM_PAPERS))
    folder.mkdir()
    for paper in papers:
        (folder / paper.name).write_bytes(paper.content)
    FIELDS.unlink(missing_ok=True)
    command = ["tokenmill", "extract", "papers", "--schema", str(SCHEMA_PATH), "-o", str(FIELDS)]
    console.print(f"\n{len(papers)} PDFs and mails into fields: {' '.join(command[:3])} --schema {SCHEMA_PATH.name} …")
    command[0] = str(Path(sys.executable).with_name(command[0]))
    own = {"TOKENMILL_BASE_URL": stack.base_url, "TOKENMILL_API_KEY": stack.api_key}
    options = ["--data-dir", str(folder.parent / "extract")]
    with subprocess.Popen([*command, *options], cwd=folder.parent, env=os.environ | own) as process:
        while process.poll() is None:
            stack.supervisor.tend_or_stop()
            time.sleep(_POLL_SECONDS)
    if process.returncode:
        raise ServiceError(f"tokenmill extract ended with status {process.returncode}.")
    fields = {Path(record["document"]).name: record["fields"] for record in _json_lines(FIELDS)}
    right = [(fields[paper.name] or {}).get(name) == value for paper in papers for name, value in paper.fields.items()]
    console.print(
        f"Fields equal to the gold: {sum(right)} of {len(right)}, null where a document lacks one", soft_wrap=True
    )
    console.print(f"Each with its place, its score and why: {FIELDS}", soft_wrap=True)


def read_gold(path: Path) -> dict[str, Fields]:
    """Return the true fields by custom_id."""
    return {line["custom_id"]: line["fields"] for line in _json_lines(path)}


def read_answers(path: Path) -> dict[str, Fields]:
    """Return the answered fields by custom_id; an answer that is not a JSON object has none."""
    return {
        line["custom_id"]: _fields_of(line["response"]["body"]["choices"][0]["message"]["content"])
        for line in _json_lines(path)
    }


def count_exact_fields(gold: Mapping[str, Fields], answers: Mapping[str, Fields]) -> tuple[int, int]:
    """Return how many gold fields were answered exactly, and how many there are."""
    exact = sum(
        answers.get(custom_id, {}).get(name) == value
        for custom_id, fields in gold.items()
        for name, value in fields.items()
    )
    return exact, sum(len(fields) for fields in gold.values())


def _table(documents: Mapping[str, str], answers: Mapping[str, Fields]) -> Table:
    table = Table("document", "extracted fields", show_lines=True)
    for custom_id in list(documents)[:_SHOWN_DOCUMENTS]:
        fields = answers.get(custom_id, {})
        table.add_row(documents[custom_id], "\n".join(f"{name}: {value}" for name, value in fields.items()))
    return table


def _documents(path: Path) -> dict[str, str]:
    return {line["custom_id"]: line["body"]["messages"][-1]["content"] for line in _json_lines(path)}


def _fields_of(content: str | None) -> Fields:
    try:
        fields = json.loads(content or "")
    except json.JSONDecodeError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _json_lines(path: Path) -> Sequence[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def _say(message: str) -> None:
    if not message.startswith("starting "):
        print(f"demo: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
