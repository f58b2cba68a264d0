"""Run one adapter on one job in a process of its own and check what it says. Knows no engine and draws no table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import benchmarks
from benchmarks.peers.catalogue import Peer
from benchmarks.workload import WorkloadRequest

# Enough for every engine to build what it builds on first use; a run of the whole workload would double the time.
_WARM_UP_REQUESTS = 8
_WARM_UP_TOKENS = 8
_FIELDS = {"version", "settings", "wall_seconds", "cpu_seconds", "outputs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every adapter is handed."""

    model: str
    converted: str
    """A folder where it may keep the model in its own format."""
    threads: int
    max_num_seqs: int
    max_model_len: int
    batch_sizes: list[int]
    warm_up: list[dict[str, Any]]
    requests: list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one engine did with a job. Seconds are of the job alone: no loading, no warm-up."""

    peer: str
    version: str
    wall_seconds: float
    cpu_seconds: float
    outputs: list[list[int]]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.outputs)

    @property
    def tokens_per_second(self) -> float:
        return self.output_tokens / self.wall_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a run counts for nothing."""

    peer: str
    reason: str


def make_job(
    requests: list[WorkloadRequest],
    *,
    model: Path,
    converted: Path,
    threads: int,
    max_num_seqs: int,
    batch_sizes: list[int],
) -> Job:
    """Return the job; its warm-up has prompts that share no prefix with those that are measured."""
    asked = [{"prompt_token_ids": request.prompt_token_ids, "max_tokens": request.max_tokens} for request in requests]
    warm_up = [
        {"prompt_token_ids": request.prompt_token_ids[::-1], "max_tokens": min(_WARM_UP_TOKENS, request.max_tokens)}
        for request in requests[:_WARM_UP_REQUESTS]
    ]
    return Job(
        model=str(model.resolve()),
        converted=str(converted.resolve()),
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_model_len=max(len(request.prompt_token_ids) + request.max_tokens for request in requests),
        batch_sizes=batch_sizes,
        warm_up=warm_up,
        requests=asked,
    )


def run_peer(peer: Peer, job: Job, *, python: Path, log: Path, timeout_seconds: float) -> Run | Failure:
    """Run the adapter to its end; everything it prints goes to `log`, which is written anew."""
    log.parent.mkdir(parents=True, exist_ok=True)
    Path(job.converted).mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        try:
            outcome = subprocess.run(
                [str(python), str(peer.script)],
                input=json.dumps(asdict(job)),
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
                env=_environment(peer, job.threads),
                timeout=timeout_seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Failure(peer=peer.name, reason=f"did not finish within {timeout_seconds:.0f} s ({log})")
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    if outcome.returncode != 0:
        last = lines[-1] if lines else "it printed nothing"
        return Failure(peer=peer.name, reason=f"{_ending(outcome.returncode)}: {last} ({log})")
    return _checked(peer, job, lines, log)


def _checked(peer: Peer, job: Job, lines: list[str], log: Path) -> Run | Failure:
    answer = next((found for line in reversed(lines) if (found := _answer(line)) is not None), None)
    if answer is None:
        return Failure(peer=peer.name, reason=f"ended without a line of results ({log})")
    wanted = [request["max_tokens"] for request in job.requests]
    lengths = [len(tokens) for tokens in answer["outputs"]]
    if lengths != wanted:
        wrong = sum(given != want for given, want in zip(lengths, wanted, strict=False)) + abs(
            len(lengths) - len(wanted)
        )
        return Failure(
            peer=peer.name,
            reason=f"gave {sum(lengths)} tokens where {sum(wanted)} were asked for; {wrong} requests are wrong ({log})",
        )
    return Run(
        peer=peer.name,
        version=str(answer["version"]),
        wall_seconds=float(answer["wall_seconds"]),
        cpu_seconds=float(answer["cpu_seconds"]),
        outputs=answer["outputs"],
        settings=dict(answer["settings"]),
    )


def _answer(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and found.keys() >= _FIELDS else None


def _environment(peer: Peer, threads: int) -> dict[str, str]:
    """Return the variables of the run: the same threads for all, nothing from a hub, ours only for ours."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    kept |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    if peer.folder is None:
        kept["PYTHONPATH"] = str(Path(str(benchmarks.__file__)).parent.parent)
    return kept


def _ending(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
