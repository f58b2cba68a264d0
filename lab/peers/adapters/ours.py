"""Run a job with our own engine, in the same way as the others."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

from engine.build import build_engine
from engine.config import EngineConfig
from engine.device.memory import available_cpu_bytes
from engine.loop.core import Engine
from engine.params import SamplingParams
from engine.scheduling.request import NewRequest


def main() -> None:
    """Read the job, run it, print the result line."""
    job = json.load(sys.stdin)
    settings: dict[str, Any] = {
        "dtype": job["dtype"],
        "device": "cpu",
        "max_num_seqs": job["max_num_seqs"],
        "num_threads": job["threads"],
        "cpu_memory_share": min(1.0, job["kv_gib"] * 2**30 / available_cpu_bytes()),
    }
    engine = build_engine(EngineConfig(model=job["model"], **settings))
    generate(engine, job["warm_up"], first_id=0)
    measured: list[dict[str, Any]] = []
    for requests in job["repetitions"]:
        started, cpu = time.perf_counter(), time.process_time()
        outputs = generate(engine, requests, first_id=len(requests) * (1 + len(measured)))
        measured.append(
            {
                "started": started,
                "wall_seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - cpu,
                "outputs": outputs,
            }
        )
    line = {
        "version": importlib.metadata.version("tokenmill"),
        "settings": settings,
        "repetitions": measured,
    }
    print("\n" + json.dumps(line), flush=True)


def generate(engine: Engine, requests: list[dict[str, Any]], *, first_id: int) -> list[list[int]]:
    """Run the requests together; return the tokens of each."""
    for index, request in enumerate(requests):
        params = SamplingParams(temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=True)
        engine.add(NewRequest(request_id=first_id + index, prompt_token_ids=request["prompt_token_ids"], params=params))
    outputs: list[list[int]] = [[] for _ in requests]
    while engine.has_work:
        for delta in engine.step():
            outputs[delta.request_id - first_id] += delta.token_ids
    return outputs


if __name__ == "__main__":
    main()
