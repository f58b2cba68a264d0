"""Run a job with OpenVINO GenAI's continuous batching on the CPU.

The model is converted once with optimum-intel, keeping weights in bf16. The converted file specifies float16 for keys
and values; a run in fp32 uses fp32 for them, as the other engines do.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from pathlib import Path
from typing import Any

PRECISIONS = {"bfloat16": "bf16", "float32": "f32"}
SHARED_TOKENS = 32  # from this length on it pays to wait for a common prefix


def main() -> None:
    """Read the job, convert the model if needed, run the job, print the result line."""
    job = json.load(sys.stdin)
    path = convert(job["model"], Path(job["converted"]) / "openvino")

    import openvino_genai  # noqa: PLC0415 - not needed for conversion, and torch must be first

    scheduler = openvino_genai.SchedulerConfig()
    settings: dict[str, Any] = {
        "cache_size": job["kv_gib"],
        "max_num_seqs": job["max_num_seqs"],
        "max_num_batched_tokens": job["settings"].get("max_num_batched_tokens", 1024),
        "dynamic_split_fuse": True,
        "enable_prefix_caching": True,
    }
    for name, value in settings.items():
        setattr(scheduler, name, value)
    properties = {"INFERENCE_PRECISION_HINT": PRECISIONS[job["dtype"]], "INFERENCE_NUM_THREADS": job["threads"]}
    if job["dtype"] == "float32":
        properties["KV_CACHE_PRECISION"] = "f32"
    pipeline = openvino_genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", properties)
    generate(pipeline, job["warm_up"])
    measured = []
    for requests in job["repetitions"]:
        started, cpu = time.perf_counter(), time.process_time()
        outputs = generate(pipeline, requests)
        measured.append(
            {
                "started": started,
                "wall_seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - cpu,
                "outputs": outputs,
            }
        )
    line = {
        "version": importlib.metadata.version("openvino-genai"),
        "settings": settings | properties,
        "repetitions": measured,
    }
    print("\n" + json.dumps(line), flush=True)


def convert(model: str, path: Path) -> Path:
    """Write the model as OpenVINO IR to `path`, once; return `path`."""
    if (path / "openvino_model.xml").is_file():
        return path
    from optimum.intel import OVModelForCausalLM  # noqa: PLC0415

    half = path.with_name(f"{path.name}-unfinished")
    loaded = OVModelForCausalLM.from_pretrained(
        model, export=True, compile=False, load_in_8bit=False, trust_remote_code=False
    )
    loaded.save_pretrained(half)
    half.rename(path)
    return path


def generate(pipeline: Any, requests: list[dict[str, Any]]) -> list[list[int]]:
    """Run the requests together; return the tokens of each.

    If they share a prefix, the others are added once the first one's prompt is computed: the prefix cache is only
    consulted when a request is added, so added together they would not find it.
    """
    handles = [add(pipeline, requests[0], 0)]
    prompts = [request["prompt_token_ids"] for request in requests]
    if len(requests) > 1 and all(prompt[:SHARED_TOKENS] == prompts[0][:SHARED_TOKENS] for prompt in prompts):
        while pipeline.has_non_finished_requests() and not handles[0].can_read():
            pipeline.step()
    handles += [add(pipeline, request, index) for index, request in enumerate(requests[1:], 1)]
    while pipeline.has_non_finished_requests():
        pipeline.step()
    return [list(handle.read_all()[0].generated_ids) for handle in handles]


def add(pipeline: Any, request: dict[str, Any], index: int) -> Any:
    """Submit one request to the pipeline; return the handle from which its tokens are read."""
    import numpy  # noqa: PLC0415
    import openvino  # noqa: PLC0415
    import openvino_genai  # noqa: PLC0415

    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = request["max_tokens"]
    config.ignore_eos = True
    config.do_sample = False
    prompt = openvino.Tensor(numpy.array([request["prompt_token_ids"]], dtype=numpy.int64))
    return pipeline.add_request(index, prompt, config)


if __name__ == "__main__":
    main()
