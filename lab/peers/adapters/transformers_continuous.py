"""Run a job with transformers' own continuous batching on the CPU."""

from __future__ import annotations

import importlib.metadata
import json
import math
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PAGE_TOKENS = 256
BATCH_TOKENS = 1024
NO_EOS = -1


def main() -> None:
    """Read the job, run it, print the result line."""
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    model: Any = AutoModelForCausalLM.from_pretrained(
        job["model"], dtype=getattr(torch, job["dtype"]), attn_implementation="sdpa", trust_remote_code=False
    ).eval()
    settings = {
        "page_size": PAGE_TOKENS,
        "num_blocks": job["max_num_seqs"] * -(-job["max_model_len"] // PAGE_TOKENS),
        "max_batch_tokens": BATCH_TOKENS,
        "max_requests_per_batch": job["max_num_seqs"],
    }
    generation = GenerationConfig(do_sample=False, eos_token_id=NO_EOS, max_new_tokens=job["max_model_len"])
    batching = ContinuousBatchingConfig(**settings)
    with model.continuous_batching_context_manager(
        generation_config=generation, continuous_batching_config=batching
    ) as manager:
        generate(manager, job["warm_up"], prefix="warm-up")
        measured: list[dict[str, Any]] = []
        for requests in job["repetitions"]:
            started, cpu = time.perf_counter(), time.process_time()
            outputs = generate(manager, requests, prefix=f"request-{len(measured)}")
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
            "settings": {"dtype": job["dtype"], **settings},
            "repetitions": measured,
        }
    print("\n" + json.dumps(line), flush=True)


def generate(
    manager: Any, requests: list[dict[str, Any]], *, prefix: str, most_seconds: float = math.inf
) -> list[list[int]]:
    """Run the requests together; return the tokens of each.

    Raises RuntimeError if the manager's thread has died, or they take longer than `most_seconds`.
    """
    indices = {
        manager.add_request(
            request["prompt_token_ids"],
            request_id=f"{prefix}-{index}",
            max_new_tokens=request["max_tokens"],
            eos_token_id=NO_EOS,
        ): index
        for index, request in enumerate(requests)
    }
    outputs: dict[int, list[int]] = {}
    deadline = time.perf_counter() + most_seconds
    while len(outputs) < len(requests):
        if time.perf_counter() > deadline:
            raise RuntimeError(
                f"transformers has finished {len(outputs)} of {len(requests)} requests in {most_seconds:g} s."
            )
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            if result.error is not None:
                raise RuntimeError(f"{result.request_id}: {result.error}")
            outputs[indices[result.request_id]] = list(result.generated_tokens)
        elif result is None and not manager.is_running():
            raise RuntimeError("The thread of transformers' continuous batching has ended.")
    return [outputs[index] for index in range(len(requests))]


if __name__ == "__main__":
    main()
