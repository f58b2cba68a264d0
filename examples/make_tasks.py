"""Write an OpenAI batch input file of tasks for a real model, over the demo's documents, for benchmarks on real text.

Run as `python -m examples.make_tasks TASKS.jsonl --tasks questions,fields,copies --count 96 --seed 0`.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples.documents import Document, Split, make_documents

_TEXT = {"type": "string", "maxLength": 40}
_FIELDS = {
    "type": "object",
    "properties": dict.fromkeys(("type", "vendor", "number", "date", "total", "currency"), _TEXT),
    "required": ["type", "vendor", "number", "date", "total", "currency"],
    "additionalProperties": False,
}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "fields", "schema": _FIELDS, "strict": True}}

_QUESTIONS = (
    "Who issued this document, and what for?",
    "What was sold, and at which price?",
    "Write one sentence about this document for somebody who cannot see it.",
    "Write a short and polite reply to whoever sent this document.",
)


def _question(document: Document, rng: random.Random) -> dict[str, Any]:
    return _body(f"{document.text}\n\n{rng.choice(_QUESTIONS)}", max_tokens=96)


def _fields(document: Document, _rng: random.Random) -> dict[str, Any]:
    task = "Write its type, vendor, number, date, total and currency as JSON."
    return _body(f"{document.text}\n\n{task}", max_tokens=128, response_format=_SCHEMA)


def _copy(document: Document, _rng: random.Random) -> dict[str, Any]:
    return _body(f"Repeat this document word for word, and nothing else:\n\n{document.text}", max_tokens=192)


TASKS: dict[str, Callable[[Document, random.Random], dict[str, Any]]] = {
    "questions": _question,
    "fields": _fields,
    "copies": _copy,
}
"""Free answers; answers constrained by a JSON schema; answers that copy from the prompt."""


def task_lines(tasks: list[str], count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return the lines, cycling through the tasks, each with its own document."""
    lines = []
    for index, document in enumerate(make_documents(count, split=Split.EVALUATION, seed=seed)):
        task = tasks[index % len(tasks)]
        body = TASKS[task](document, random.Random(f"{task}/{seed}/{index}"))
        lines.append(
            {"custom_id": f"{task}-{index:04d}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        )
    return lines


def _body(question: str, **parameters: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}]
    return {"model": "demo", "messages": messages, "temperature": 0, **parameters}


def main(argv: list[str] | None = None) -> None:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default=",".join(TASKS), help=f"of {','.join(TASKS)}")
    parser.add_argument("--count", type=int, default=96)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    tasks = arguments.tasks.split(",")
    if unknown := [task for task in tasks if task not in TASKS]:
        parser.error(f"--tasks {arguments.tasks}: {unknown[0]!r} is not a task; use {', '.join(TASKS)}.")
    lines = task_lines(tasks, arguments.count, seed=arguments.seed)
    arguments.out.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
