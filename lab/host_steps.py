"""Measure the host's processor time of a decode step: scheduling, a step's arrays, sampling tables, recording.

    python -m lab.host_steps --sequences 256,1024
    python -m lab.host_steps --beside ../before --repeats 5    # alternating with another checkout

The engine is the real one with a model of 64 token ids that computes nothing: it answers each step with the same
logits. Steps overlap, as on a GPU. A figure is the CPU time of a process for one step; two checkouts are measured in
turn, a few seconds apart, so that their figures are comparable on a busy machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.arguments import natural, naturals
from engine.build import assemble
from engine.config import EngineConfig, LoadFormat
from engine.device.choice import ResolvedConfig, resolve
from engine.loop.core import Engine
from engine.loop.runner import Runner
from engine.models.config import load_model_config
from engine.models.step_model import StepModel
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest
from lab.make_model import Shape, write_config

_HERE = Path(__file__).resolve().parents[1]
_VOCAB_SIZE = 64
_TOKEN, _STOP_TOKEN = 5, 7
_PROMPT_TOKENS = 64
_WARM_UP_STEPS = 20
_SHAPE = Shape(
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
    intermediate_size=32,
    vocab_size=_VOCAB_SIZE,
    tie_word_embeddings=True,
)


class _NoCompute:
    """A model whose most likely token is always the same."""

    def __init__(self, model: StepModel, *, num_rows: int) -> None:
        self._model = model
        self._logits = torch.zeros(num_rows, _VOCAB_SIZE)
        self._logits[:, _TOKEN] = 9.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def run(self, step: object, cache: object, rows: torch.Tensor) -> torch.Tensor:
        return self._logits[: rows.shape[0]]


class _HostRunner(Runner):
    """The engine's runner without its model's arithmetic."""

    def __init__(self, config: ResolvedConfig) -> None:
        super().__init__(config)
        self._model = cast(StepModel, _NoCompute(self._model, num_rows=config.scheduler.max_sampled_rows))


def ready_engine(num_sequences: int, *, num_steps: int) -> Engine:
    """Return an engine that decodes that many sequences, and can for this many steps."""
    engine = _engine(num_sequences, max_tokens=num_sequences + _WARM_UP_STEPS + num_steps)
    while engine.scheduler.num_running < num_sequences or engine.scheduler.last_plan.counts[-1] > 1:
        engine.step()
    _run(engine, _WARM_UP_STEPS)
    return engine


def milliseconds_per_step(engine: Engine, *, num_steps: int) -> float:
    """Return the process's CPU time of one of so many steps."""
    began = time.process_time()
    _run(engine, num_steps)
    return (time.process_time() - began) * 1e3 / num_steps


def _engine(num_sequences: int, *, max_tokens: int) -> Engine:
    """Return an engine with this many greedy requests, which end at a stop token that never comes."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as path:
        config = EngineConfig(
            model=str(write_config(Path(path), _SHAPE)),
            load_format=LoadFormat.RANDOM,
            dtype="float32",
            device="cpu",
            max_num_seqs=num_sequences,
            max_num_batched_tokens=max(16_384, num_sequences),
            num_kv_blocks=num_sequences * (_PROMPT_TOKENS + max_tokens) // 16 + num_sequences,
            overlap=True,
            warm_up=False,
        )
        resolved = resolve(config, load_model_config(config.model), torch.device("cpu"))
        engine = assemble(resolved, _HostRunner(resolved))
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, stop_token_ids=[_STOP_TOKEN])
    for number in range(num_sequences):
        prompt = [number % _VOCAB_SIZE, number // _VOCAB_SIZE % _VOCAB_SIZE, *range(_PROMPT_TOKENS - 2)]
        engine.add(NewRequest(request_id=number, prompt_token_ids=prompt, params=params))
    return engine


def _run(engine: Engine, num_steps: int) -> None:
    for _ in range(num_steps):
        engine.step()


def _serve(sequences: Sequence[int], *, num_steps: int, num_repeats: int) -> None:
    """Measure once for each line of standard input."""
    engines = {count: ready_engine(count, num_steps=num_steps * num_repeats) for count in sequences}
    gc.collect()
    gc.freeze()  # as an engine process does once its model is loaded
    for _ in sys.stdin:
        measured = {count: milliseconds_per_step(engine, num_steps=num_steps) for count, engine in engines.items()}
        print(json.dumps(measured), flush=True)
    gc.unfreeze()


@contextmanager
def _serving(checkout: Path, arguments: argparse.Namespace) -> Iterator[Callable[[], dict[int, float]]]:
    """Start a process with the code of a checkout; yield what measures there: milliseconds by number of sequences."""
    # By its path, so that a checkout without this file is measured with it.
    command = [sys.executable, "-P", __file__, "--serve", "--steps", str(arguments.steps)]
    command += ["--repeats", str(arguments.repeats), "--sequences", ",".join(map(str, arguments.sequences))]
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ask, answers = process.stdin, process.stdout

        def measure() -> dict[int, float]:
            ask.write("\n")
            return {int(count): value for count, value in json.loads(answers.readline()).items()}

        yield measure
        process.stdin.close()


def _row(name: str, runs: Sequence[Mapping[int, float]]) -> str:
    cells = []
    for count in runs[0]:
        values = [run[count] for run in runs]
        cells.append(f"{count}: {statistics.median(values):.2f} ms ({', '.join(f'{value:.2f}' for value in values)})")
    return f"{name:>8}  " + "; ".join(cells)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the checkouts in turn, each in its process, and print medians; return the exit code."""
    arguments = _parse(argv)
    if arguments.serve:
        _serve(arguments.sequences, num_steps=arguments.steps, num_repeats=arguments.repeats)
        return 0
    checkouts = {"this": _HERE} | ({} if arguments.beside is None else {"beside": arguments.beside.resolve()})
    runs: dict[str, list[dict[int, float]]] = {name: [] for name in checkouts}
    with ExitStack() as stack:
        measures = {name: stack.enter_context(_serving(path, arguments)) for name, path in checkouts.items()}
        for _ in range(arguments.repeats):
            for name, measure in measures.items():
                runs[name].append(measure())
    print("processor time of a decode step, median (each run), by number of sequences")
    for name, measured in runs.items():
        print(_row(name, measured))
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.host_steps", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sequences", type=naturals, default=[256, 1024])
    parser.add_argument("--steps", type=natural, default=200)
    parser.add_argument("--repeats", type=natural, default=5)
    parser.add_argument("--beside", type=Path, metavar="CHECKOUT", help="another checkout, measured in turn")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
