"""Run an adapter on a job in its own process and check its output."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import lab
from benchmarks.workload import WorkloadRequest
from lab.peers.catalogue import Peer
from lab.peers.machine import MachineWatch

_FIELDS = {"version", "settings", "repetitions"}
_KV_GIB = 4
_STEP = 7919
"""Offset of token ids from one repetition to the next; a prime, so that they rarely coincide."""

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The input of every adapter."""

    model: str
    converted: str
    """A folder in which it may keep the model in its own format."""
    threads: int
    max_num_seqs: int
    max_model_len: int
    dtype: str
    kv_gib: int
    """Memory for keys and values, if an engine can be configured."""
    settings: Mapping[str, Any]
    """The adapter's own, from the catalogue."""
    warm_up: list[dict[str, Any]]
    """As many requests as are measured, with the same lengths and shared prefixes, but other tokens."""
    repetitions: list[list[dict[str, Any]]]
    """The workload, each time with other tokens, so that an engine finds only its own prefixes in its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """One run of a workload. Seconds are of the requests only, without loading and warm-up."""

    wall_seconds: float
    cpu_seconds: float
    other_cores: float
    """Mean number of cores that other processes kept busy meanwhile."""
    outputs: list[list[int]]

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.outputs)) / self.wall_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An engine's results of a job."""

    peer: str
    version: str
    dtype: str
    repetitions: list[Repetition]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Return the median of the repetitions."""
        return statistics.median(one.tokens_per_second for one in self.repetitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run is invalid."""

    peer: str
    dtype: str
    reason: str


def make_job(
    requests: list[WorkloadRequest],
    *,
    model: Path,
    converted: Path,
    threads: int,
    max_num_seqs: int,
    vocab_size: int,
    repeat: int = 1,
    dtype: str = "bfloat16",
) -> Job:
    """Return the job; the first repetition has the workload's tokens, the warm-up shares none with any repetition."""
    bodies = [{"prompt_token_ids": request.prompt_token_ids, "max_tokens": request.max_tokens} for request in requests]
    return Job(
        model=str(model.resolve()),
        converted=str(converted.resolve()),
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_model_len=max(len(request.prompt_token_ids) + request.max_tokens for request in requests),
        dtype=dtype,
        kv_gib=_KV_GIB,
        settings={},
        warm_up=_with_other_tokens(bodies, repeat, vocab_size),
        repetitions=[_with_other_tokens(bodies, index, vocab_size) for index in range(repeat)],
    )


def _with_other_tokens(requests: list[dict[str, Any]], index: int, vocab_size: int) -> list[dict[str, Any]]:
    shift = index * _STEP
    return [
        {**request, "prompt_token_ids": [(token + shift) % vocab_size for token in request["prompt_token_ids"]]}
        for request in requests
    ]


def best_settings(peer: Peer, job: Job, run: Callable[[Job], Run | Failure]) -> tuple[Job, list[dict[str, Any]]]:
    """Return the job with the fastest of a peer's candidate settings, and each candidate's result in one repetition."""
    if len(peer.candidates) == 1:
        return replace(job, settings=peer.candidates[0]), []
    tried: list[dict[str, Any]] = []
    for candidate in peer.candidates:
        result = run(replace(job, settings=candidate, repetitions=job.repetitions[:1]))
        rate = result.tokens_per_second if isinstance(result, Run) else None
        tried.append({"settings": dict(candidate), "tokens_per_second": rate})
    best = max(tried, key=lambda one: one["tokens_per_second"] or 0.0)
    return replace(job, settings=best["settings"]), tried


def run_peer(
    peer: Peer, job: Job, *, python: Path, log: Path, timeout_seconds: float, report: Report = lambda _: None
) -> Run | Failure:
    """Run the adapter to its end; its output goes to `log`, which is overwritten.

    `report` is called every few seconds with the time so far and the last line of output.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    Path(job.converted).mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        child = subprocess.Popen(
            [str(python), str(peer.script)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env=_environment(peer, job.threads),
        )
        watch = MachineWatch(child.pid)
        try:
            _hand_over(child, job)
            code = _wait(child, watch, log, timeout_seconds=timeout_seconds, report=report)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    if code is None:
        return Failure(peer=peer.name, dtype=job.dtype, reason=f"did not finish within {timeout_seconds:.0f} s ({log})")
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if code != 0:
        last = lines[-1] if lines else "it printed nothing"
        return Failure(peer=peer.name, dtype=job.dtype, reason=f"{_ending(code)}: {last} ({log})")
    return _checked(peer, job, lines, log=log, watch=watch)


def _hand_over(child: subprocess.Popen[str], job: Job) -> None:
    assert child.stdin is not None
    try:
        with child.stdin:
            json.dump(asdict(job), child.stdin)
    except BrokenPipeError:
        return  # it ended without reading; its log has the reason


def _wait(
    child: subprocess.Popen[str], watch: MachineWatch, log: Path, *, timeout_seconds: float, report: Report
) -> int | None:
    """Return the exit code, or None after the timeout."""
    started = reported = time.monotonic()
    while True:
        try:
            return child.wait(timeout=min(watch.seconds_between_looks, timeout_seconds))
        except subprocess.TimeoutExpired:
            watch.look()
        now = time.monotonic()
        if now - started >= timeout_seconds:
            return None
        if now - reported >= watch.seconds_between_reports:
            reported = now
            report(f"{now - started:.0f} s, {watch.process_seconds():.0f} s CPU, last line: {_last_line(log)}")


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:100] if lines else "nothing"


def _checked(peer: Peer, job: Job, lines: list[str], *, log: Path, watch: MachineWatch) -> Run | Failure:
    answer = next((parsed for line in reversed(lines) if (parsed := _answer(line)) is not None), None)
    if answer is None:
        return Failure(peer=peer.name, dtype=job.dtype, reason=f"ended without a line of results ({log})")
    measured = answer["repetitions"]
    expected = [request["max_tokens"] for requests in job.repetitions for request in requests]
    lengths = [len(tokens) for one in measured for tokens in one["outputs"]]
    if lengths != expected or len(measured) != len(job.repetitions):
        wrong = sum(
            length != expected_length for length, expected_length in zip(lengths, expected, strict=False)
        ) + abs(len(lengths) - len(expected))
        return Failure(
            peer=peer.name,
            dtype=job.dtype,
            reason=f"gave {sum(lengths)} tokens instead of {sum(expected)}; {wrong} requests are wrong ({log})",
        )
    return Run(
        peer=peer.name,
        version=str(answer["version"]),
        dtype=job.dtype,
        repetitions=[
            Repetition(
                wall_seconds=float(one["wall_seconds"]),
                cpu_seconds=float(one["cpu_seconds"]),
                other_cores=watch.other_cores(
                    float(one["started"]), float(one["wall_seconds"]), cpu_seconds=float(one["cpu_seconds"])
                ),
                outputs=one["outputs"],
            )
            for one in measured
        ],
        settings=dict(answer["settings"]),
    )


def _answer(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        body = json.loads(line)
    except json.JSONDecodeError:
        return None
    return body if isinstance(body, dict) and body.keys() >= _FIELDS else None


def _environment(peer: Peer, threads: int) -> dict[str, str]:
    """Return the variables of the run: the same threads for all, no access to a hub, our code only for our engine."""
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    variables |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    if peer.folder is None:
        variables["PYTHONPATH"] = str(Path(str(lab.__file__)).parent.parent)
    return variables


def _ending(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
