"""Run ours and every installed peer on the same token ids, one after the other, and print the ratios.

python -m benchmarks.peers --models build/S --workloads S_W1.jsonl.gz --venvs build/peers
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.arguments import names, natural, naturals, positive
from benchmarks.peers.catalogue import OURS, PEERS, Peer, choose
from benchmarks.peers.comparison import Comparison, compare
from benchmarks.peers.runs import Failure, Job, Run, make_job, run_peer
from benchmarks.peers.table import as_json, print_comparison
from benchmarks.workload import WorkloadError, WorkloadRequest, read_workload

_TRIAL_REQUESTS, _TRIAL_TOKENS = 4, 8


def main(argv: list[str] | None = None) -> int:
    """Measure and print; return 1 where a run failed, 2 on bad arguments, else 0."""
    given = _parser().parse_args(argv)
    try:
        peers = choose(given.peers)
        jobs = {name(path): _job(path, given) for path in given.workloads}
    except (WorkloadError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    missing = [peer.how_to_install(given.venvs) for peer in peers if peer.python(given.venvs) is None]
    for sentence in missing:
        print(sentence, file=sys.stderr)
    present = [peer for peer in peers if peer.python(given.venvs) is not None]
    comparisons: list[Comparison] = []
    settings: dict[str, Any] = {}
    for workload, job in jobs.items():
        runs = list(_runs(workload, job, peers=present, given=given))
        settings[workload] = {run.peer: run.settings for run in runs if isinstance(run, Run)}
        comparisons.append(compare(workload, runs))
        if not given.json:
            print_comparison(comparisons[-1])
    if given.json:
        print(json.dumps(as_json(comparisons, settings=settings, missing=missing), indent=2))
    return int(any(found.has_failures for found in comparisons))


def name(workload: Path) -> str:
    """Return what a workload is called: its file name without .jsonl and .gz."""
    return workload.name.removesuffix(".gz").removesuffix(".jsonl")


def model_for(workload: Path, models: list[Path]) -> Path:
    """Return the only model, or the one whose folder is named like the file up to its underscore (S for S_W1).

    Raises ValueError where there is no such folder among them.
    """
    if len(models) == 1:
        return models[0]
    wanted = name(workload).partition("_")[0]
    for model in models:
        if model.name == wanted:
            return model
    raise ValueError(f"{workload.name}: none of the models is called {wanted}. Give its folder with --models.")


def converted_folder(model: Path, work: Path) -> Path:
    """Return where engines keep this model in their own format: another folder once its files have changed."""
    digest = hashlib.sha256()
    for file in [*sorted(model.glob("*.safetensors")), model / "config.json"]:
        state = file.stat()
        digest.update(f"{file.name} {state.st_size} {state.st_mtime_ns}\n".encode())
    return work / f"{model.name}-{digest.hexdigest()[:12]}"


def _runs(workload: str, job: Job, *, peers: list[Peer], given: argparse.Namespace) -> Iterator[Run | Failure]:
    """Yield ours, the peers, ours again: what the machine did meanwhile shows between our two."""
    for round_number in range(given.repeat):
        for index, peer in enumerate([OURS, *peers, OURS]):
            python = peer.python(given.venvs)
            assert python is not None
            log = given.work / "logs" / f"{workload}-{round_number}-{index}-{peer.name}.log"
            run = run_peer(peer, job, python=python, log=log, timeout_seconds=given.timeout_seconds)
            print(_progress(workload, run), file=sys.stderr, flush=True)
            yield run


def _progress(workload: str, run: Run | Failure) -> str:
    if isinstance(run, Failure):
        return f"{workload} {run.peer}: failed, {run.reason}"
    return (
        f"{workload} {run.peer}: {run.output_tokens} tokens in {run.wall_seconds:.1f} s "
        f"({run.cpu_seconds:.1f} s CPU), {run.tokens_per_second:.0f} tok/s"
    )


def _job(workload: Path, given: argparse.Namespace) -> Job:
    requests = read_workload(workload)
    model = model_for(workload, given.models)
    if not (model / "config.json").is_file():
        raise ValueError(f"{model} has no config.json. Make a model with `python -m benchmarks.make_model`.")
    return make_job(
        [_short(request) for request in requests[:_TRIAL_REQUESTS]] if given.trial else requests,
        model=model,
        converted=converted_folder(model, given.work),
        threads=given.threads,
        max_num_seqs=given.max_num_seqs,
        batch_sizes=given.batch_sizes,
    )


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
    parser.add_argument("--repeat", type=natural, default=1, help="rounds; the medians count")
    parser.add_argument("--threads", type=natural, default=2)
    parser.add_argument("--max-num-seqs", type=natural, default=128)
    parser.add_argument(
        "--batch-sizes", type=naturals, default=[8, 16, 32], help="of transformers; the best one counts"
    )
    parser.add_argument("--timeout-seconds", type=positive, default=1800.0, help="for one run with loading")
    parser.add_argument("--trial", action="store_true", help="4 requests of 8 tokens: is everything set up?")
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
