"""Measure how long an urgent line takes alone, and beside lines of 2,048 prompts each.

python -m lab.neighbours.many_prompts [--tokenmill OTHER/.venv/bin/tokenmill] [--python-path OTHER]

Starts its own stack, of any revision, with the demo model.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from benchmarks.arguments import natural
from benchmarks.service import Batches
from lab.own_stack import own_stack

_PROMPTS = 2048
_TOKENS = 4
_SETTLE_SECONDS = 2.0
"""From the claim of the first line's chunk to the submission of the urgent line."""


def lines_of_prompts(num_lines: int) -> bytes:
    """Return lines with one completion each; all prompts differ."""
    lines = (
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": "demo",
                "prompt": [f"{number} {index}: a sentence of some words" for index in range(_PROMPTS)],
                "max_tokens": _TOKENS,
                "ignore_eos": True,
            },
        }
        for number in range(num_lines)
    )
    return "\n".join(map(json.dumps, lines)).encode()


def urgent_seconds(batches: Batches) -> float:
    """Return the time of an urgent line from its upload to its result file."""
    began = time.monotonic()
    batches.wait_for(batches.submit(1, max_tokens=_TOKENS, priority="urgent"), "completed")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    parser.add_argument("--python-path", help="PYTHONPATH of that revision, if it is not installed")
    parser.add_argument("--lines", type=natural, default=20, help="of 2,048 prompts")
    parser.add_argument(
        "--turns", type=natural, default=5, help="measurements of the urgent line, alone and beside them"
    )
    arguments = parser.parse_args()
    environment = {} if arguments.python_path is None else {"PYTHONPATH": arguments.python_path}
    with own_stack(arguments.tokenmill, environment=environment) as stack:
        batches, client = stack.batches(), stack.client()
        urgent_seconds(batches)  # warm-up
        alone = [round(urgent_seconds(batches), 2) for _ in range(arguments.turns)]
        file = client.files.create(file=("many.jsonl", lines_of_prompts(arguments.lines)), purpose="batch")
        many = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        batches.wait_for(many.id, "in_progress")
        time.sleep(_SETTLE_SECONDS)
        beside = [round(urgent_seconds(batches), 2) for _ in range(arguments.turns)]
        figures = {"alone": alone, "beside": beside, "still_ran": batches.is_running(many.id)}
        print(json.dumps(figures | {"load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()
