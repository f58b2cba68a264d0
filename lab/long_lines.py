"""Measure the memory of a worker that prepares lines of megabytes for a model with a context of a million tokens.

python -m lab.long_lines [--tokenmill OTHER/.venv/bin/tokenmill]

Starts its own stack, of any revision, with the demo model configured for such a context. One line keeps its engine busy
for hours, so the worker soon holds its maximum: K bulk lines and one each of normal and urgent priority.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks.arguments import natural
from lab.own_stack import OwnStack, own_stack

_MODEL = Path(__file__).resolve().parents[1] / "examples" / "demo_model"
_CONTEXT = 1_048_576
_WORD = "invoice "  # two tokens of the demo model
_HELD = "SELECT coalesce(max((engine_stats ->> 'prompt_tokens_total')::int), 0) FROM worker"
_CLASSES = {"bulk": 6, "normal": 1, "urgent": 1}


def make_model(folder: Path) -> Path:
    """Copy the demo model and configure a context of a million tokens; return its folder."""
    shutil.copytree(_MODEL, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": _CONTEXT}))
    return folder


def peak_mib(pid: int) -> float:
    """Return the peak resident size of a process in MiB."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


def measure(stack: OwnStack, size_bytes: int) -> None:
    """Print the worker's peak before the lines and when it holds its maximum."""
    batches, worker = stack.batches(), stack.role("worker")
    before = peak_mib(worker.pid)
    text, num_tokens = _WORD * (size_bytes // len(_WORD)), 0
    for priority, number in _CLASSES.items():
        batches.submit(number, max_tokens=4, priority=priority, text=text)
        num_tokens += number * size_bytes // 4
        while stack.query(_HELD) < num_tokens:
            time.sleep(0.2)
    print(f"{sum(_CLASSES.values())} lines of {size_bytes / 1e6:.1f} MB, {stack.query(_HELD):,} tokens: ", end="")
    print(f"the worker's peak is {peak_mib(worker.pid):.0f} MiB, and was {before:.0f} MiB without a line")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.long_lines", description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenmill", default="tokenmill", help="tokenmill executable of the revision to measure")
    parser.add_argument(
        "--line-bytes", type=natural, default=4_000_000, help="size of a line's text, 4 bytes per token"
    )
    arguments = parser.parse_args()
    environment = {"TOKENMILL_DRAIN_SECONDS": "0"}
    with tempfile.TemporaryDirectory() as folder:
        model = str(make_model(Path(folder)))
        with own_stack(arguments.tokenmill, "--model", model, environment=environment) as stack:
            measure(stack, arguments.line_bytes)


if __name__ == "__main__":
    main()
