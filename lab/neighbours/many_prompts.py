"""Measure how long an urgent line takes alone, and beside lines of 2,048 prompts each.

python -m lab.neighbours.many_prompts [--tokenmill OTHER/.venv/bin/tokenmill] [--python-path OTHER]

Starts a stack of its own, of any revision, with the demo model.
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
"""From when the first line's chunk was claimed until the urgent line is submitted."""


def lines_of_prompts(num_lines: int) -> bytes:
    """Return lines of a completion each, no two prompts of which are alike."""
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
    """Return how long an urgent line takes from its upload to its file."""
    began = time.monotonic()
    batches.wait_for(batches.submit(1, max_tokens=_TOKENS, priority="urgent"), "completed")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenmill", default="tokenmill", help="the program of the revision that is measured")
    parser.add_argument("--python-path", help="of that revision, where it is not installed")
    parser.add_argument("--lines", type=natural, default=20, help="of 2,048 prompts")
    parser.add_argument("--turns", type=natural, default=5, help="of the urgent line, alone and beside them")
    arguments = parser.parse_args()
    environment = {} if arguments.python_path is None else {"PYTHONPATH": arguments.python_path}
    with own_stack(arguments.tokenmill, environment=environment) as stack:
        batches, client = stack.batches(), stack.client()
        urgent_seconds(batches)  # warms everything up
        alone = [round(urgent_seconds(batches), 2) for _ in range(arguments.turns)]
        file = client.files.create(file=("many.jsonl", lines_of_prompts(arguments.lines)), purpose="batch")
        many = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        batches.wait_for(many.id, "in_progress")
        time.sleep(_SETTLE_SECONDS)
        beside = [round(urgent_seconds(batches), 2) for _ in range(arguments.turns)]
        found = {"alone": alone, "beside": beside, "still_ran": batches.is_running(many.id)}
        print(json.dumps(found | {"load": os.getloadavg()[0]}), flush=True)


if __name__ == "__main__":
    main()
