"""Measure the demo's documents through a running service and the same lines with the bare engine, alternating.

Each turn has its own documents, so that no side finds them in its prefix cache.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.processor_time import spent

if TYPE_CHECKING:
    from engine.llm import LLM

_POLL_SECONDS = 0.25
"""Poll interval of the batch: each poll costs CPU time."""
_NUM_WARM_UP = 200
_ENGINE = "engine"


class Batches(Protocol):
    """The part of `benchmarks.service.Batches` that is used here."""

    def submit_file(self, content: bytes) -> str: ...
    def wait_for(self, batch_id: str, status: str, *, poll_seconds: float) -> Any: ...
    def processor_seconds(self) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The same lines, through the service and with the bare engine."""

    num_lines: int
    service_seconds: float
    """From the upload to the finished files."""
    spent_before: Mapping[str, float]
    spent_after: Mapping[str, float]
    """CPU seconds of each role; empty if the service runs on another machine."""
    bare_seconds: float
    """Including the chat template, tokenization and decoding."""
    bare_processor_seconds: float

    @property
    def ratio(self) -> float:
        return self.service_seconds / self.bare_seconds

    @property
    def ms_outside(self) -> float | None:
        """Return the CPU milliseconds per line of everything but the engine."""
        if not self.spent_after:
            return None
        total = sum(
            after - self.spent_before.get(role, 0.0) for role, after in self.spent_after.items() if role != _ENGINE
        )
        return total / self.num_lines * 1e3

    def shown(self) -> str:
        """Return the results as text."""
        speed = f"{self.service_seconds:.1f} s, the bare engine {self.bare_seconds:.1f} s, {self.ratio:.2f} times"
        if not self.spent_after:
            return speed
        bare = self.bare_processor_seconds / self.num_lines * 1e3
        outside = f"{self.ms_outside:.2f} ms outside the engine; bare {bare:.2f}"
        return (
            f"{speed}\n  processor ms a line: "
            f"{spent(self.spent_before, self.spent_after, num_lines=self.num_lines)}; {outside}"
        )


def measure(batches: Batches, num_documents: int, *, turns: int) -> None:
    """Print each turn, and the medians of several."""
    llm = _bare_engine()
    seed = time.time_ns()  # other documents in each run: the service may have those of earlier runs in its cache
    _turn(batches, llm, document_lines(_NUM_WARM_UP, seed=seed))
    results = []
    for number in range(1, turns + 1):
        results.append(_turn(batches, llm, document_lines(num_documents, seed=seed + number)))
        print(f"{num_documents} documents of the demo: {results[-1].shown()}", flush=True)
    if turns > 1:
        print(_medians(results), flush=True)


def _medians(turns: Sequence[Turn]) -> str:
    shown = f"medians of {len(turns)} turns: {statistics.median(turn.ratio for turn in turns):.2f} times"
    outside = [turn.ms_outside for turn in turns if turn.ms_outside is not None]
    return f"{shown}, {statistics.median(outside):.2f} ms outside the engine" if outside else shown


def document_lines(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return lines of the demo's batch file."""
    make_batch = _examples()
    documents = make_batch.make_documents(count, split=make_batch.Split.DEMO, seed=seed)
    return [make_batch.batch_line(f"document-{index}", document) for index, document in enumerate(documents)]


def _examples() -> Any:
    try:
        from examples import make_batch  # noqa: PLC0415 - not in a wheel
    except ImportError:
        raise SystemExit("the demo's documents and model exist only in a checkout; run the command there") from None
    return make_batch


def _bare_engine() -> LLM:
    """Return the demo's model, loaded as by a worker."""
    from engine.process.spawned import openmp_environment  # noqa: PLC0415 - as below

    os.environ.update(openmp_environment())  # before torch is loaded, as in the engine process
    from engine.llm import LLM  # noqa: PLC0415 - torch, which other measurements do not need

    return LLM(Path(_examples().__file__).parent / "demo_model")


def _turn(batches: Batches, llm: LLM, lines: Sequence[Mapping[str, Any]]) -> Turn:
    content = "\n".join(map(json.dumps, lines)).encode()
    before, started_at = batches.processor_seconds(), time.monotonic()
    batches.wait_for(batches.submit_file(content), "completed", poll_seconds=_POLL_SECONDS)
    service_seconds, after = time.monotonic() - started_at, batches.processor_seconds()
    own_before, started_at = time.process_time(), time.monotonic()
    _run_bare(llm, lines)
    return Turn(
        num_lines=len(lines),
        service_seconds=service_seconds,
        spent_before=before,
        spent_after=after,
        bare_seconds=time.monotonic() - started_at,
        bare_processor_seconds=time.process_time() - own_before,
    )


def _run_bare(llm: LLM, lines: Sequence[Mapping[str, Any]]) -> None:
    from engine.params import SamplingParams  # noqa: PLC0415 - as above

    bodies = [line["body"] for line in lines]
    params = [SamplingParams(temperature=body["temperature"], max_tokens=body["max_tokens"]) for body in bodies]
    outputs = llm.chat([body["messages"] for body in bodies], params)
    assert all(output.outputs[0].error is None for output in outputs)
