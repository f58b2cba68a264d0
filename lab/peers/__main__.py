"""Run our engine and every installed peer on the same token ids, one after the other, and print the ratios.

python -m lab.peers --models build/S --workloads S_W1.jsonl.gz --venvs build/peers
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.arguments import names, natural, positive
from benchmarks.workload import WorkloadError, WorkloadRequest, read_workload
from lab.peers.catalogue import DTYPES, OURS, PEERS, Peer, choose
from lab.peers.comparison import Comparison, compare
from lab.peers.runs import Failure, Job, Run, best_settings, make_job, run_peer
from lab.peers.table import as_json, print_comparison

_TRIAL_REQUESTS, _TRIAL_TOKENS = 4, 8


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return 1 if a run failed, 2 on bad arguments, otherwise 0."""
    arguments = _parser().parse_args(argv)
    try:
        peers = choose(arguments.peers)
        if unknown := sorted(set(arguments.dtypes) - set(DTYPES)):
            raise ValueError(f"{', '.join(unknown)}: no such precision. There are {', '.join(DTYPES)}.")
        jobs = {name(path): _job(path, arguments) for path in arguments.workloads}
    except (WorkloadError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    missing = [peer.how_to_install(arguments.venvs) for peer in peers if peer.python(arguments.venvs) is None]
    for sentence in missing:
        print(sentence, file=sys.stderr)
    present = [peer for peer in peers if peer.python(arguments.venvs) is not None]
    comparisons: list[Comparison] = []
    settings: dict[str, Any] = {}
    tried: dict[str, Any] = {}
    for workload, job in jobs.items():
        session = _Session(workload, arguments)
        runs = list(session.runs(job, present))
        settings[workload] = {f"{run.peer} {run.dtype}": run.settings for run in runs if isinstance(run, Run)}
        tried[workload] = session.tried
        comparisons.append(compare(workload, runs))
        if not arguments.json:
            print_comparison(comparisons[-1])
    if arguments.json:
        print(json.dumps(as_json(comparisons, settings=settings, tried=tried, missing=missing), indent=2))
    return int(any(comparison.has_failures for comparison in comparisons))


def name(workload: Path) -> str:
    """Return the name of a workload: its file name without .jsonl and .gz."""
    return workload.name.removesuffix(".gz").removesuffix(".jsonl")


def model_for(workload: Path, models: list[Path]) -> Path:
    """Return the only model, or the one whose folder is named like the file up to its underscore (S for S_W1).

    Raises ValueError if there is no such folder among them.
    """
    if len(models) == 1:
        return models[0]
    folder_name = name(workload).partition("_")[0]
    for model in models:
        if model.name == folder_name:
            return model
    raise ValueError(f"{workload.name}: none of the models is named {folder_name}. Give its folder with --models.")


def converted_folder(model: Path, work: Path) -> Path:
    """Return where engines keep this model in their own format; the folder changes with the model's files."""
    digest = hashlib.sha256()
    for file in [*sorted(model.glob("*.safetensors")), model / "config.json"]:
        state = file.stat()
        digest.update(f"{file.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return work / f"{model.name}-{digest.hexdigest()[:12]}"


class _Session:
    """The runs of one workload."""

    def __init__(self, workload: str, arguments: argparse.Namespace) -> None:
        self._workload = workload
        self._arguments = arguments
        self._num_runs = 0
        self.tried: dict[str, list[dict[str, Any]]] = {}
        """By engine and precision: the result of each candidate setting."""

    def runs(self, job: Job, peers: list[Peer]) -> Iterator[Run | Failure]:
        """Yield ours, the peers, and ours again: the difference of our two shows changes of the machine."""
        for dtype in self._arguments.dtypes:
            for peer in [OURS, *peers, OURS]:
                if dtype in peer.dtypes:
                    yield self._measured(peer, replace(job, dtype=dtype))

    def _measured(self, peer: Peer, job: Job) -> Run | Failure:
        if self._arguments.search:
            job, tried = best_settings(peer, job, partial(self._run, peer))
            if tried:
                self.tried[f"{peer.name} {job.dtype}"] = tried
        else:
            job = replace(job, settings=peer.candidates[0])
        return self._run(peer, job)

    def _run(self, peer: Peer, job: Job) -> Run | Failure:
        python = peer.python(self._arguments.venvs)
        assert python is not None
        self._num_runs += 1
        called = f"{self._workload} {peer.name} {job.dtype} {_written(job.settings)}".rstrip()
        log = self._arguments.work / "logs" / f"{self._workload}-{self._num_runs}-{peer.name}.log"
        run = run_peer(
            peer,
            job,
            python=python,
            log=log,
            timeout_seconds=self._arguments.timeout_seconds,
            report=lambda status: print(f"{called}: {status}", file=sys.stderr, flush=True),
        )
        print(f"{called}: {_outcome(run)}", file=sys.stderr, flush=True)
        return run


def _written(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _outcome(run: Run | Failure) -> str:
    if isinstance(run, Failure):
        return f"failed, {run.reason}"
    each = ", ".join(
        f"{one.tokens_per_second:.0f} ({one.cpu_seconds:.1f} s CPU, {one.other_cores:.1f} cores busy beside it)"
        for one in run.repetitions
    )
    return f"{run.tokens_per_second:.0f} tok/s, the median of {each}"


def _job(workload: Path, arguments: argparse.Namespace) -> Job:
    requests = read_workload(workload)
    if any(request.json_schema is not None for request in requests):
        raise ValueError(f"{workload.name} has requests with a JSON schema, which the adapters do not support.")
    model = model_for(workload, arguments.models)
    if not (model / "config.json").is_file():
        raise ValueError(
            f"{model} has no config.json. Make a model with `python -m lab.make_model`, from a GGUF file with "
            "--weights FILE."
        )
    return make_job(
        [_short(request) for request in requests[:_TRIAL_REQUESTS]] if arguments.trial else requests,
        model=model,
        converted=converted_folder(model, arguments.work),
        threads=arguments.threads,
        max_num_seqs=arguments.max_num_seqs,
        vocab_size=_vocab_size(model),
        repeat=arguments.repeat,
    )


def _vocab_size(model: Path) -> int:
    config = json.loads((model / "config.json").read_text())
    return int(config.get("text_config", config)["vocab_size"])


def _short(request: WorkloadRequest) -> WorkloadRequest:
    return replace(request, max_tokens=min(_TRIAL_TOKENS, request.max_tokens))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokenmill bench peers", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", type=Path, nargs="+", required=True, metavar="DIR")
    parser.add_argument("--workloads", type=Path, nargs="+", required=True, metavar="FILE")
    parser.add_argument("--venvs", type=Path, default=Path("build/peers"), help="folder of the virtual environments")
    parser.add_argument("--work", type=Path, default=Path("build/peers-work"), help="converted models and logs")
    known = [peer.name for peer in PEERS]
    parser.add_argument("--peers", type=names, default=known, help=f"of {','.join(known)}")
    parser.add_argument("--repeat", type=natural, default=3, help="repetitions after a warm-up; the median counts")
    parser.add_argument("--dtypes", type=names, default=list(DTYPES), help=f"of {','.join(DTYPES)}")
    parser.add_argument("--no-search", dest="search", action="store_false", help="use only a peer's default settings")
    parser.add_argument("--threads", type=natural, default=2)
    parser.add_argument("--max-num-seqs", type=natural, default=128)
    parser.add_argument(
        "--timeout-seconds", type=positive, default=1800.0, help="timeout of one run, including loading"
    )
    parser.add_argument("--trial", action="store_true", help="4 requests of 8 tokens, to check the setup")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
