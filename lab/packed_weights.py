"""The memory, quality and speed of a GGUF file, packed: `python -m lab.packed_weights FILE --text TEXT`.

Each row is a process of its own. Quality is compared with a file in fp32, where products are exact; speed is
processor time, medians of three, so that other load matters little.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.models.config import ModelConfig, load_model_config
from engine.models.decoder import Decoder
from engine.models.step_model import KvCache, StepTensors, new_cache
from engine.tokenizer import load_tokenizer
from kernels.choice.products import choose_products
from kernels.choice.weighing import WeightShape
from kernels.paged import PagedStep
from kernels.write_kv import preferred_cache_dtype

_BLOCK_SIZE = 16
_TURNS = 3
_DECODES = (1, 8, 32, 128)
_SEQUENCES = 64  # decoded in a turn, or two steps of more
_PROMPT_TOKENS = 1000


def main() -> None:
    """Measure a file in fp32 and bf16, and print a row for each."""
    arguments = _parse()
    if arguments.dtype is not None:
        print(json.dumps(_measure(arguments)))
        return
    print("| dtype | products | memory MB (most) | perplexity | KL | same first | " + _speed_heads() + " |")
    for dtype in ("float32", "bfloat16"):
        row = _in_a_process(dtype)
        print("| " + " | ".join(str(value) for value in row) + " |", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.packed_weights", description=__doc__)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--text", type=Path, required=True, help="a text whose tokens are predicted")
    parser.add_argument("--reference", type=Path, help="the file whose products in fp32 are exact (MODEL)")
    parser.add_argument("--quality", action="store_true", help="leave out the times")
    parser.add_argument("--tokens", type=int, default=1024, help="tokens of the text that are used (1024)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="measure this row only, and print JSON")
    return parser.parse_args()


def _in_a_process(dtype: str) -> list[Any]:
    command = [sys.executable, "-m", "lab.packed_weights", *sys.argv[1:], "--dtype", dtype]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(done.stderr)
    row: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def _speed_heads() -> str:
    return " | ".join([*(f"ms a step of {count}" for count in _DECODES), f"ms a prompt of {_PROMPT_TOKENS:,}"])


@torch.inference_mode()
def _measure(arguments: argparse.Namespace) -> list[Any]:
    config, dtype = load_model_config(str(arguments.model)), getattr(torch, arguments.dtype)
    assert isinstance(config, ModelConfig), "our own decoder runs every GGUF file"
    # The compiler's own memory is no part of a model's.
    choose_products([WeightShape(width=4096, depth=1024, count=1, is_in_layers=True)], dtype)
    decoder, grown, most = loaded(config, dtype)
    token_ids = load_tokenizer(arguments.model).encode(arguments.text.read_text())[: arguments.tokens + 1]
    predicted = _predict(decoder, token_ids[:-1])
    original = load_model_config(str(arguments.reference or arguments.model))
    assert isinstance(original, ModelConfig), "our own decoder runs every GGUF file"
    exact = _predict(_decoder(original, torch.float32), token_ids[:-1])
    actual = torch.tensor(token_ids[1:])[:, None]
    perplexity = math.exp(-float(predicted.gather(1, actual).mean()))
    divergence = float((exact.exp() * (exact - predicted)).sum(-1).mean())
    same = float((exact.argmax(-1) == predicted.argmax(-1)).float().mean())
    quality = [f"{perplexity:.3f}", f"{divergence:.5f}", f"{100 * same:.1f} %"]
    row = [arguments.dtype, decoder.products, f"{grown:.0f} ({most:.0f})", *quality]
    if arguments.quality:
        return row
    prompt = [7 * at % 1000 for at in range(_PROMPT_TOKENS)]
    times = [_milliseconds(decoder, count) for count in _DECODES]
    return [*row, *(f"{ms:.1f}" for ms in (*times, _cpu_milliseconds(lambda: _predict(decoder, prompt))))]


def _decoder(config: ModelConfig, dtype: torch.dtype) -> Decoder:
    return Decoder(config, dtype=dtype, device=torch.device("cpu"), max_positions=2048)


def loaded(config: ModelConfig, dtype: torch.dtype) -> tuple[Decoder, float, float]:
    """Return a decoder, by how many MB loading it grew the process, and by how many at most."""
    before, peak, is_loaded = _resident_mb(), [0.0], threading.Event()

    def watch() -> None:
        while not is_loaded.wait(0.002):
            peak[0] = max(peak[0], _resident_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    decoder = _decoder(config, dtype)
    is_loaded.set()
    watcher.join()
    after = _resident_mb()
    return decoder, after - before, max(after, peak[0]) - before


def _resident_mb() -> float:
    """Return the resident memory of this process, mapped pages of files included."""
    with open("/proc/self/statm", encoding="ascii") as fields:
        return int(fields.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _cache(decoder: Decoder, num_blocks: int) -> KvCache:
    dtype = preferred_cache_dtype("cpu", decoder.dtype)
    return new_cache(
        decoder.kv_shapes, num_blocks=num_blocks, block_size=_BLOCK_SIZE, dtype=dtype, device=decoder.device
    )


def _predict(decoder: Decoder, token_ids: list[int]) -> Tensor:
    """Return the logarithms of the next tokens' probabilities after each token, in one step."""
    count = len(token_ids)
    num_blocks, positions = -(-count // _BLOCK_SIZE), torch.arange(count)
    paged = PagedStep(
        block_tables=torch.arange(1, num_blocks + 1, dtype=torch.int32)[None],
        query_start=torch.tensor([0, count], dtype=torch.int32),
        context_lens=torch.tensor([count], dtype=torch.int32),
        slots=positions + _BLOCK_SIZE,
        positions=positions,
        max_query_len=count,
        max_context_len=count,
    )
    step = StepTensors(token_ids=torch.tensor(token_ids), paged=paged)
    x, residual = decoder.forward(step, _cache(decoder, num_blocks + 1))
    return torch.log_softmax(decoder.logits(x, residual).float(), -1)


def _milliseconds(decoder: Decoder, count: int) -> float:
    """Return the processor time of a step that decodes so many sequences, each at its first token."""
    rows = torch.arange(count)
    paged = PagedStep(
        block_tables=(rows + 1).to(torch.int32)[:, None],
        query_start=torch.arange(count + 1, dtype=torch.int32),
        context_lens=torch.ones(count, dtype=torch.int32),
        slots=(rows + 1) * _BLOCK_SIZE,
        positions=torch.zeros(count, dtype=torch.int64),
        max_query_len=1,
        max_context_len=1,
        num_decodes=count,
    )
    step, cache = StepTensors(token_ids=rows + 5, paged=paged), _cache(decoder, count + 1)

    num_steps = max(2, _SEQUENCES // count)

    def run() -> None:
        for _ in range(num_steps):
            decoder.run(step, cache, rows)

    return _cpu_milliseconds(run) / num_steps


def _cpu_milliseconds(run: Callable[[], object]) -> float:
    run()
    times = []
    for _ in range(_TURNS):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    return statistics.median(times)


if __name__ == "__main__":
    main()
