"""A Llama of 7B in 4 bits with random weights: its file, and what a process grows by that loads and runs it.

python -m lab.packed_checkpoint OUT --group 128     (writes GPTQ, measures, and deletes OUT)
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.llm import LLM
from engine.models.config import ModelConfig, load_model_config
from engine.params import SamplingParams
from kernels.choice.products import choose_products
from kernels.choice.weighing import WeightShape
from lab.make_model import SHAPES, Shape, write_config
from lab.packed_weights import loaded

LLAMA_7B = replace(
    SHAPES["llama-8b"],
    num_key_value_heads=32,
    intermediate_size=11008,
    vocab_size=32000,
    max_position_embeddings=4096,
    rope_theta=10000.0,
)
"""6.7B parameters, the sizes of Llama-2-7B."""

_BITS, _NUMBERS = 4, 8
_MIDDLE_ZEROS = 0x77777777  # 8, stored less 1
_SCALE = 0.02 / 4.6
"""Of evenly spread numbers of 4 bits, whose standard deviation is 4.6."""


def main(argv: Sequence[str] | None = None) -> None:
    """Write, measure in processes of their own, and delete."""
    parser = argparse.ArgumentParser(prog="python -m lab.packed_checkpoint", description=__doc__)
    parser.add_argument("out", type=Path, help="a new folder, deleted at the end")
    parser.add_argument("--group", type=int, default=128, help="numbers that share a scale (128)")
    parser.add_argument("--measure", choices=("memory", "answers"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.measure is not None:
        print(json.dumps(_memory(arguments.out) if arguments.measure == "memory" else _answers(arguments.out)))
        return
    try:
        arguments.out.mkdir(parents=True)
    except OSError as error:
        parser.error(f"{arguments.out} cannot be made ({error.strerror}); give a folder that does not exist yet")
    try:
        write_gptq(arguments.out, LLAMA_7B, group=arguments.group)
        print(f"files: {sum(file.stat().st_size for file in arguments.out.iterdir()) / 1e6:,.0f} MB")
        for measured in ("memory", "answers"):
            command = [sys.executable, "-m", "lab.packed_checkpoint", str(arguments.out), "--measure", measured]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
            print(done.stdout if done.returncode == 0 else done.stderr, end="")
    finally:
        shutil.rmtree(arguments.out)


def write_gptq(path: Path, shape: Shape, *, group: int) -> None:
    """Write a model of random numbers in a file for each layer, and one for what is not quantized."""
    write_config(path, shape, dtype="float16")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": _BITS, "group_size": group, "sym": True}
    (path / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    weight_map: dict[str, str] = {}
    for index, tensors in enumerate(_files(shape, group, generator)):
        file = f"model-{index:05}.safetensors"
        save_file(tensors, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _files(shape: Shape, group: int, generator: torch.Generator) -> Iterator[dict[str, Tensor]]:
    hidden, ffn = shape.hidden_size, shape.intermediate_size
    outside = torch.randn((2, shape.vocab_size, hidden), generator=generator).mul_(0.02).half()
    yield {
        "model.embed_tokens.weight": outside[0].clone(),
        "lm_head.weight": outside[1].clone(),
        "model.norm.weight": torch.ones(hidden).half(),
    }
    keys = hidden // shape.num_attention_heads * shape.num_key_value_heads
    widths = {
        "self_attn.q_proj": hidden, "self_attn.k_proj": keys, "self_attn.v_proj": keys, "self_attn.o_proj": hidden,
        "mlp.gate_proj": ffn, "mlp.up_proj": ffn, "mlp.down_proj": hidden,
    }  # fmt: skip
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        tensors = {
            f"{prefix}.{norm}_layernorm.weight": torch.ones(hidden).half() for norm in ("input", "post_attention")
        }
        for name, width in widths.items():
            parts = _linear(width, ffn if name == "mlp.down_proj" else hidden, group, generator)
            tensors |= {f"{prefix}.{name}.{part}": tensor for part, tensor in parts.items()}
        yield tensors


def _linear(width: int, depth: int, group: int, generator: torch.Generator) -> dict[str, Tensor]:
    words = torch.randint(-(2**31), 2**31, (depth // _NUMBERS, width), generator=generator, dtype=torch.int32)
    return {
        "qweight": words,
        "qzeros": torch.full((depth // group, width // _NUMBERS), _MIDDLE_ZEROS, dtype=torch.int32),
        "scales": torch.full((depth // group, width), _SCALE).half(),
        "g_idx": (torch.arange(depth) // group).to(torch.int32),
    }


@torch.inference_mode()
def _memory(path: Path) -> dict[str, Any]:
    config, dtype = load_model_config(str(path)), torch.bfloat16
    assert isinstance(config, ModelConfig), "our own decoder runs a Llama"
    # The compiler's own memory is no part of a model's.
    choose_products([WeightShape(width=4096, depth=1024, count=1, is_in_layers=True)], dtype)
    start = time.perf_counter()
    decoder, grown, most = loaded(config, dtype)
    seconds = time.perf_counter() - start
    return {"grown MB": round(grown), "most MB": round(most), "seconds": round(seconds), "products": decoder.products}


def _answers(path: Path) -> dict[str, Any]:
    llm = LLM(path, dtype="bfloat16", num_kv_blocks=64, max_num_seqs=4, max_num_batched_tokens=64)
    params, start = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True), time.process_time()
    (output,) = llm.generate([[1, 5, 17, 100, 44]], params)
    seconds = time.process_time() - start
    return {"tokens": list(output.outputs[0].token_ids), "CPU s of 5 tokens in and 16 out": round(seconds, 2)}


if __name__ == "__main__":
    main()
