"""Run a job with transformers' `generate` over padded batches in order of arrival."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.throughput.measuring import generate_padded
from benchmarks.workload import WorkloadRequest


def main() -> None:
    """Read the job, run it, print the result line."""
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=getattr(torch, job["dtype"]), trust_remote_code=False
    ).eval()
    size = job["settings"].get("batch_size", 16)
    generate(model, job["warm_up"], batch_size=size)
    measured = []
    for requests in job["repetitions"]:
        started, cpu = time.perf_counter(), time.process_time()
        outputs = generate(model, requests, batch_size=size)
        measured.append(
            {
                "started": started,
                "wall_seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - cpu,
                "outputs": outputs,
            }
        )
    line = {
        "version": importlib.metadata.version("transformers"),
        "settings": {"dtype": job["dtype"], "batch_size": size},
        "repetitions": measured,
    }
    print("\n" + json.dumps(line), flush=True)


def generate(model: Any, requests: list[dict[str, Any]], *, batch_size: int) -> list[list[int]]:
    """Run the requests in order, a batch at a time; return the tokens of each, truncated at its requested length."""
    outputs: list[list[int]] = []
    for start in range(0, len(requests), batch_size):
        batch = [
            WorkloadRequest(
                prompt_token_ids=request["prompt_token_ids"],
                max_tokens=request["max_tokens"],
                ignore_eos=True,
                arrival_seconds=0.0,
            )
            for request in requests[start : start + batch_size]
        ]
        with torch.inference_mode():
            rows = generate_padded(model, batch)
        outputs += [row[: request.max_tokens] for row, request in zip(rows, batch, strict=True)]
    return outputs


if __name__ == "__main__":
    main()
