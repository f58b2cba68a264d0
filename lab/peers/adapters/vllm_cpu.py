"""Run a job with vLLM's CPU backend, in this process.

The settings are those that its documentation recommends for throughput: compiled (no eager mode), Intel's OpenMP and
tcmalloc preloaded. The engine stays in this process: a separate scheduler process would compete for the same cores.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TCMALLOC = (
    Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    Path("/usr/lib/aarch64-linux-gnu/libtcmalloc_minimal.so.4"),
)


def main() -> None:
    """Read the job, run it, print the result line."""
    preloaded = preload()
    job = json.load(sys.stdin)
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": str(job["kv_gib"])}
    bind = f"0-{job['threads'] - 1}" if job["settings"].get("is_bound") else "nobind"
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": bind, "VLLM_LOGGING_LEVEL": "WARNING"}

    from vllm import LLM  # noqa: PLC0415 - reads the environment on import

    settings: dict[str, Any] = {
        "dtype": job["dtype"],
        "max_num_seqs": job["max_num_seqs"],
        "max_model_len": job["max_model_len"],
    }
    llm = LLM(model=job["model"], skip_tokenizer_init=True, seed=0, **settings)
    generate(llm, job["warm_up"])
    measured = []
    for requests in job["repetitions"]:
        started, cpu = time.perf_counter(), time.process_time()
        outputs = generate(llm, requests)
        measured.append(
            {
                "started": started,
                "wall_seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - cpu,
                "outputs": outputs,
            }
        )
    line = {
        "version": importlib.metadata.version("vllm-cpu"),
        "settings": {**settings, "preloaded": preloaded, "kv_gib": job["kv_gib"], "threads_bind": bind},
        "repetitions": measured,
    }
    print("\n" + json.dumps(line), flush=True)


def preload() -> list[str]:
    """Restart this script with the available libraries preloaded; return their names."""
    candidates = [*TCMALLOC, Path(sys.prefix) / "lib/libiomp5.so"]
    libraries = [path for path in candidates if path.is_file()]
    if libraries and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = ":".join(str(path) for path in libraries)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    return [path.name for path in libraries]


def generate(llm: Any, requests: list[dict[str, Any]]) -> list[list[int]]:
    """Run the requests together; return the tokens of each."""
    from vllm import SamplingParams  # noqa: PLC0415

    prompts = [{"prompt_token_ids": request["prompt_token_ids"]} for request in requests]
    params = [
        SamplingParams(temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=False)
        for request in requests
    ]
    return [list(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]


if __name__ == "__main__":
    main()
