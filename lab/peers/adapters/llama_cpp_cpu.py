"""Run a job with llama.cpp through llama-cpp-python's C interface.

The model becomes a GGUF in bf16 without a vocabulary. Sequences come and go every step, as in llama.cpp's own server; a
prefix that all prompts share is computed once and copied, as its batched benchmark does.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np

BATCH_TOKENS = 2048
MICRO_BATCH_TOKENS = 512
SHORTEST_SHARED_PREFIX = 32
# Each sequence has its own stream of the cache: with a unified cache, attention would visit the cells of all.
IS_CACHE_UNIFIED = False

ERROR = 3  # GGML_LOG_LEVEL_ERROR


def log_errors(level: int, text: bytes, _: Any) -> None:
    """Print llama.cpp's messages only if they are errors."""
    if level == ERROR:
        sys.stderr.write(text.decode(errors="replace"))


def main() -> None:
    """Read the job, convert the model if needed, run the job, print the result line."""
    job = json.load(sys.stdin)
    path = convert(Path(job["model"]), Path(job["converted"]) / "llama-cpp.gguf")
    engine = Engine(path, job)
    engine.generate(job["warm_up"])
    measured = []
    for requests in job["repetitions"]:
        started, cpu = time.perf_counter(), time.process_time()
        outputs = engine.generate(requests)
        measured.append(
            {
                "started": started,
                "wall_seconds": time.perf_counter() - started,
                "cpu_seconds": time.process_time() - cpu,
                "outputs": outputs,
            }
        )
    line = {
        "version": importlib.metadata.version("llama-cpp-python"),
        "settings": engine.settings,
        "repetitions": measured,
    }
    print("\n" + json.dumps(line), flush=True)


class Engine:
    """A model, a context with `max_num_seqs` sequences, and one batch that is refilled every step."""

    def __init__(self, path: Path, job: dict[str, Any]) -> None:
        params = llama_cpp.llama_context_default_params()
        self.num_slots = min(job["max_num_seqs"], len(job["warm_up"]))
        each = -(-job["max_model_len"] // 256) * 256  # llama.cpp rounds the cells of a sequence up to this
        params.n_ctx, params.n_seq_max, params.kv_unified = each * self.num_slots, self.num_slots, IS_CACHE_UNIFIED
        params.n_batch, params.n_ubatch = BATCH_TOKENS, MICRO_BATCH_TOKENS
        params.n_threads = params.n_threads_batch = job["threads"]
        self.settings = {name: getattr(params, name) for name in ("n_ctx", "n_seq_max", "n_batch", "n_ubatch")}
        self.settings |= {"n_threads": job["threads"], "kv_unified": IS_CACHE_UNIFIED, "file_type": "bf16"}
        llama_cpp.llama_backend_init()
        self._log = llama_cpp.llama_log_callback(log_errors)  # llama.cpp keeps no reference to it
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        model = llama_cpp.llama_model_load_from_file(os.fsencode(path), llama_cpp.llama_model_default_params())
        self.context = llama_cpp.llama_init_from_model(model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp cannot make a context with {self.settings}.")
        self.memory = llama_cpp.llama_get_memory(self.context)
        self.num_logits = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def generate(self, requests: list[dict[str, Any]]) -> list[list[int]]:
        """Run the requests together; return the tokens of each."""
        shared = shared_prefix([request["prompt_token_ids"] for request in requests])
        if shared:
            self._share(requests[0]["prompt_token_ids"][:shared])
        outputs: list[list[int]] = [[] for _ in requests]
        waiting = list(range(len(requests)))[::-1]
        slots: dict[int, int] = {}  # slot -> request
        while waiting or slots:
            rows = self._fill(requests, waiting, slots=slots, outputs=outputs, shared=shared)
            for slot, token in zip(rows, self._decode(len(rows)), strict=True):
                outputs[slots[slot]].append(token)
                if len(outputs[slots[slot]]) == requests[slots[slot]]["max_tokens"]:
                    llama_cpp.llama_memory_seq_rm(self.memory, slot, shared if waiting else -1, -1)
                    del slots[slot]
        llama_cpp.llama_memory_clear(self.memory, True)
        return outputs

    def _share(self, prefix: list[int]) -> None:
        for start in range(0, len(prefix), BATCH_TOKENS):
            self.batch.n_tokens = 0
            for position, token in enumerate(prefix[start : start + BATCH_TOKENS], start):
                self._put(token, position, 0, has_logits=position == len(prefix) - 1)
            self._decode(1)
        for slot in range(1, self.num_slots):
            llama_cpp.llama_memory_seq_cp(self.memory, 0, slot, -1, -1)

    def _fill(
        self,
        requests: list[dict[str, Any]],
        waiting: list[int],
        *,
        slots: dict[int, int],
        outputs: list[list[int]],
        shared: int,
    ) -> list[int]:
        """Put the running sequences and as many new prompts as fit into the batch; return its slots in order."""
        self.batch.n_tokens = 0
        rows = list(slots)
        for slot in rows:
            tokens = outputs[slots[slot]]
            position = len(requests[slots[slot]]["prompt_token_ids"]) + len(tokens) - 1
            self._put(tokens[-1], position, slot, has_logits=True)
        free = [slot for slot in range(self.num_slots) if slot not in slots]
        while waiting and free:
            prompt = requests[waiting[-1]]["prompt_token_ids"]
            if self.batch.n_tokens + len(prompt) - shared > BATCH_TOKENS:
                break
            slot = free.pop(0)
            slots[slot] = waiting.pop()
            rows.append(slot)
            for position in range(shared, len(prompt)):
                self._put(prompt[position], position, slot, has_logits=position == len(prompt) - 1)
        return rows

    def _put(self, token: int, position: int, slot: int, *, has_logits: bool) -> None:
        slot_index = self.batch.n_tokens
        self.batch.token[slot_index], self.batch.pos[slot_index] = token, position
        self.batch.n_seq_id[slot_index], self.batch.logits[slot_index] = 1, has_logits
        self.batch.seq_id[slot_index][0] = slot
        self.batch.n_tokens = slot_index + 1

    def _decode(self, num_rows: int) -> list[int]:
        """Compute the batch; return the most likely token of each row that has logits."""
        code = llama_cpp.llama_decode(self.context, self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}.")
        pointer = ctypes.cast(llama_cpp.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
        logits = np.ctypeslib.as_array(pointer, shape=(num_rows, self.num_logits))
        return [int(token) for token in logits.argmax(axis=1)]


def shared_prefix(prompts: list[list[int]]) -> int:
    """Return the length of the longest prefix that all prompts share, leaving at least one token of each."""
    if len(prompts) < 2:
        return 0
    first, end = prompts[0], min(len(prompt) for prompt in prompts) - 1
    count = 0
    while count < end and all(prompt[count] == first[count] for prompt in prompts):
        count += 1
    return count if count >= SHORTEST_SHARED_PREFIX else 0


def convert(model: Path, path: Path) -> Path:
    """Write the Llama or Qwen3 at `model` as a GGUF in bf16 to `path`, once; return `path`."""
    if path.is_file():
        return path
    config = json.loads((model / "config.json").read_text())
    kind = config["model_type"]
    if kind not in KINDS:
        raise ValueError(f"{model} is a {kind}; this script converts {' and '.join(KINDS)} only.")
    half = path.with_name(f"{path.name}-unfinished")
    writer = gguf.GGUFWriter(half, kind)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    for name, bits in tensors(model / "model.safetensors"):
        add(writer, name, bits, paired_heads={"attn_q": heads, "attn_k": kv_heads} if kind == "llama" else {})
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    half.rename(path)
    return path


def tensors(path: Path) -> list[tuple[str, Any]]:
    """Return the names and bf16 bit patterns (uint16) of a safetensors file."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    arrays = []
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{name} is {entry['dtype']}; this script converts bf16 models only.")
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        arrays.append((name, np.frombuffer(data[begin:end], dtype=np.uint16).reshape(entry["shape"])))
    return arrays


KINDS = ("llama", "qwen3")

PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def add(writer: Any, name: str, bits: Any, *, paired_heads: dict[str, int]) -> None:
    """Add one tensor under GGUF's name: vectors as fp32, matrices as bf16.

    `paired_heads` gives the number of heads of tensors that are permuted into llama.cpp's order of pairs, used only for
    Llama.
    """
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        title = WHOLE[stem]
    else:
        _, _, layer, part = stem.split(".", 3)
        title = f"blk.{layer}.{PARTS[part]}"
        if PARTS[part] in paired_heads:
            count = paired_heads[PARTS[part]]
            halves = bits.reshape(count, 2, bits.shape[0] // count // 2, bits.shape[1])
            bits = halves.swapaxes(1, 2).reshape(bits.shape)
    if bits.ndim == 1:
        writer.add_tensor(f"{title}.weight", (bits.astype(np.uint32) << 16).view(np.float32))
        return
    kind = gguf.GGMLQuantizationType.BF16
    writer.add_tensor(f"{title}.weight", np.ascontiguousarray(bits).view(np.uint8), raw_dtype=kind)


if __name__ == "__main__":
    main()
