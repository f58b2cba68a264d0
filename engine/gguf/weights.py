"""Provide the tensors of a GGUF file under transformers' names and with its order of rows.

llama.cpp's names are in gguf-py's tensor_mapping.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from engine.errors import UnsupportedModelError
from engine.gguf.container import GgufFile
from engine.gguf.dequantize import read_tensor
from engine.gguf.grouped import LAYOUTS, read_grouped
from kernels.grouped_weight import GroupedWeight, Layout

ROPE_FACTORS = "rope_freqs.weight"
"""Divisors of the frequencies; a part of the configuration."""

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ATTENTION_BIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "llama": ("attn_q", "attn_k", "attn_v", "attn_output"),
        "qwen2": ("attn_q", "attn_k", "attn_v"),
        "qwen3": ("attn_q", "attn_k", "attn_v", "attn_output"),
    }
)
"""Tensors with a bias, by model_type, if the configuration has attention_bias."""

_MLP_BIASES = ("ffn_gate", "ffn_up", "ffn_down")
_QK_NORMS = ("attn_q_norm", "attn_k_norm")
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,8})\.(\w+)")  # 01 would be a second name for 1


class GgufWeights:
    """The weights of an open file, by transformers' names. Raises UnsupportedModelError for an unexpected tensor."""

    def __init__(self, file: GgufFile, config: Mapping[str, Any], *, has_pairs: bool) -> None:
        """Take an open file, its `read_config`, and whether queries and keys are in pairs (`_unpaired`)."""
        self._file = file
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        self._heads: Mapping[str, int] = heads if has_pairs else {}
        places = _Places(config)
        self._stored = {places.name_of(name, file): name for name in file.tensors if name != ROPE_FACTORS}
        self.names = list(self._stored)

    def read(self, name: str) -> Tensor:
        """Return one of its tensors on the CPU, in fp32 if it is quantized."""
        stored = self._stored[name]
        tensor = self._ordered(stored, read_tensor(self._file, stored))
        self._file.release(stored)
        return tensor

    def layout(self, name: str) -> Layout | None:
        """Return how one of its tensors stays packed; None for one that `read` has to return."""
        info = self._file.tensors[self._stored[name]]
        return LAYOUTS.get(info.kind) if len(info.shape) == 2 else None

    def read_grouped(self, name: str) -> GroupedWeight:
        """Return one of its tensors that have a layout."""
        stored = self._stored[name]
        info = self._file.tensors[stored]
        rows, columns = info.shape
        weight = read_grouped(self._file.stored(stored), info.kind, (rows, columns))
        self._file.release(stored)
        return weight.rows(lambda part: self._ordered(stored, part))

    def _ordered(self, stored: str, rows: Tensor) -> Tensor:
        num_heads = self._heads.get(stored.split(".")[-2])
        return rows if num_heads is None else _unpaired(rows, num_heads)


def _unpaired(tensor: Tensor, num_heads: int) -> Tensor:
    """Return each head's rows with its two halves one after the other, in transformers' order, instead of in pairs.

    llama.cpp rotates each row of an architecture like `llama` with the next one, and its converter orders them so.
    """
    pairs = tensor.view(num_heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


class _Places:
    """The tensors that the decoder of one configuration has."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._model_type = config["model_type"]
        self._num_layers = config["num_hidden_layers"]
        has_norms = self._model_type == "qwen3"
        attention = _ATTENTION_BIASES[self._model_type] if config["attention_bias"] else ()
        mlp = _MLP_BIASES if config["mlp_bias"] and self._model_type == "llama" else ()
        weights = [part for part in _IN_LAYER if has_norms or part not in _QK_NORMS]
        self._in_layer = {"weight": weights, "bias": [*attention, *mlp]}
        self._outside = {"weight": list(_OUTSIDE), "bias": []}

    def name_of(self, stored: str, file: GgufFile) -> str:
        """Return transformers' name of a tensor. Raises UnsupportedModelError for one that would never be read."""
        base, _, kind = stored.rpartition(".")
        in_layer = _LAYER.fullmatch(base)
        if base in self._outside.get(kind, ()):
            return f"{_OUTSIDE[base]}.{kind}"
        if in_layer and in_layer[2] in self._in_layer.get(kind, ()) and int(in_layer[1]) < self._num_layers:
            return f"model.layers.{in_layer[1]}.{_IN_LAYER[in_layer[2]]}.{kind}"
        raise UnsupportedModelError(
            f"{file.path} has a tensor {stored}, which our engine's decoder does not have: this {self._model_type} "
            f"has weights of {', '.join(_OUTSIDE)} and, in the layers blk.0 to blk.{self._num_layers - 1}, weights of "
            f"{', '.join(self._in_layer['weight'])} and biases of {', '.join(self._in_layer['bias']) or 'none'}. "
            "Convert the model again, or give its folder with config.json and safetensors instead."
        )
