"""Translate a GGUF file's metadata into transformers' config.json.

llama.cpp's keys are in gguf-py's constants.py. Of the weights only the few that scale the rotary angles are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.gguf.container import GgufFile, Numbers, Value
from engine.gguf.dequantize import read_tensor
from engine.gguf.tensor_types import TensorType
from engine.gguf.weights import ROPE_FACTORS, GgufWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class _Architecture:
    """The equivalent in transformers of a general.architecture."""

    model_type: str
    class_name: str
    has_pairs: bool = False
    """Its queries and keys are ordered so that a row is rotated with the next one."""


_ARCHITECTURES: Mapping[str, _Architecture] = MappingProxyType(
    {
        "llama": _Architecture(model_type="llama", class_name="LlamaForCausalLM", has_pairs=True),
        "qwen2": _Architecture(model_type="qwen2", class_name="Qwen2ForCausalLM"),
        "qwen3": _Architecture(model_type="qwen3", class_name="Qwen3ForCausalLM"),
    }
)
"""llama.cpp treats Mistral as `llama`, without its window."""

_NEUTRAL: Mapping[str, tuple[Value, ...]] = MappingProxyType(
    {
        "expert_count": (0,),
        "attention.causal": (True,),
        "attention.scale": (0.0,),
        "attention.sliding_window": (0,),
        "attention.clamp_kqv": (0.0,),
        "attention.max_alibi_bias": (0.0,),
        "attention.temperature_length": (0,),
        "attn_logit_softcapping": (0.0,),
        "final_logit_softcapping": (0.0,),
        "embedding_scale": (0.0, 1.0),
        "logit_scale": (0.0, 1.0),
        "residual_scale": (0.0, 1.0),
        "pooling_type": (0,),
        "use_parallel_residual": (False,),
        "nextn_predict_layers": (0,),
        "rope.scaling.yarn_ext_factor": (1.0, -1.0),
        "rope.scaling.yarn_log_multiplier": (0.0,),
    }
)
"""Keys after the architecture's name that change the computation, with the values that do not."""

_DTYPES = {TensorType.F32: "float32", TensorType.F16: "float16", TensorType.BF16: "bfloat16"}
_QUANTIZED_DTYPE = "bfloat16"  # quantized weights were made from 16 bits

_END_TOKENS = ("eos_token_id", "eot_token_id", "eom_token_id")
"""The end tokens: of a sequence, of a turn, of a message."""

_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>")
_END_TEXTS = frozenset((*_TURN_ENDS, "<|endoftext|>", "<|end_of_text|>", "</s>"))
"""Control tokens that end an answer without a key: a file names one, and its model may write another."""

_CONTROL = 3  # of tokenizer.ggml.token_type

_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Values of Llama 3.1 to 3.3; a file has the resulting factors."""


def read_config(file: GgufFile) -> dict[str, Any]:
    """Return the equivalent of the model's config.json.

    Raises ModelLoadError for a key that is missing or wrong, UnsupportedModelError for unsupported features.
    """
    keys = _keys_of(file)
    architecture = _ARCHITECTURES[keys.architecture]
    heads = keys.whole("attention.head_count")
    head_dim = keys.whole("attention.key_length", keys.whole("embedding_length") // heads)
    _check_heads(keys, head_dim)
    return {
        "model_type": architecture.model_type,
        "architectures": [architecture.class_name],
        "vocab_size": _vocab_size(file),
        "hidden_size": keys.whole("embedding_length"),
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.whole("context_length"),
        "rope_parameters": _rope(keys, file, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "hidden_act": "silu",
        "dtype": _dtype(file),
        "bos_token_id": _token_id(file, "bos_token_id"),
        "eos_token_id": _end_token_ids(file),
        "pad_token_id": None,
    }


def open_weights(path: Path) -> GgufWeights:
    """Open a file for its weights. Raises like `GgufFile`, `read_config` and `GgufWeights`."""
    file = GgufFile(path)
    return GgufWeights(file, read_config(file), has_pairs=_ARCHITECTURES[_keys_of(file).architecture].has_pairs)


class _Keys:
    """The metadata after the architecture's name."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self.path = file.path
        self.architecture = architecture
        self._metadata = file.metadata

    def given(self, name: str) -> Value | None:
        """Return a value, None if there is none; a list of equal values, one for each layer, is returned as one.

        Raises UnsupportedModelError if they differ.
        """
        value = self._metadata.get(f"{self.architecture}.{name}")
        if not isinstance(value, list | Numbers):
            return value
        if any(entry != value[0] for entry in value) if isinstance(value, list) else not value.is_alike():
            raise UnsupportedModelError(
                f"{self.path} has a {self.architecture}.{name} for each layer, and they differ; our engine's decoder "
                "has layers alike."
            )
        return value[0] if len(value) else None

    def whole(self, name: str, default: int | None = None) -> int:
        value = self.given(name)
        value = default if value is None else value
        if type(value) is not int or value < 1:
            raise self._wrong(name, value, "a whole number above 0")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self.given(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < math.inf:
            raise self._wrong(name, value, "a number above 0")
        return float(value)

    def _wrong(self, name: str, value: Any, expected: str) -> ModelLoadError:
        actual = "no value" if value is None else repr(value)
        return ModelLoadError(
            f"{self.path} has {actual} for {self.architecture}.{name}; it must be {expected}. Convert the model again."
        )


def _keys_of(file: GgufFile) -> _Keys:
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(f"{file.path} is a GGUF file of the type {kind!r}; only a model can be served.")
    if file.metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedModelError(
            f"{file.path} is one of {file.metadata['split.count']} parts of a model; join them with llama.cpp's "
            "`llama-gguf-split --merge` and give the whole file."
        )
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _ARCHITECTURES:
        raise UnsupportedModelError(
            f"{file.path} has general.architecture {architecture!r}; of GGUF files the engine runs "
            f"{', '.join(_ARCHITECTURES)}. Give the model's folder with config.json and safetensors instead."
        )
    keys = _Keys(file, architecture)
    for name, neutral in _NEUTRAL.items():
        value = keys.given(name)
        if value is not None and value not in neutral:
            raise UnsupportedModelError(
                f"{file.path} has {architecture}.{name} {value!r}, which our engine's decoder does not have."
            )
    return keys


def _check_heads(keys: _Keys, head_dim: int) -> None:
    for name in ("attention.value_length", "rope.dimension_count"):
        size = keys.whole(name, head_dim)
        if size != head_dim:
            raise UnsupportedModelError(
                f"{keys.path} has {keys.architecture}.{name} {size} and heads of {head_dim}; our engine's decoder has "
                "them alike."
            )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{file.path} has no tensor token_embd.weight; it holds no model's weights.")
    return embedding.shape[0]


def _dtype(file: GgufFile) -> str:
    """Return the dtype of the weights: that of the most values, since norms stay in fp32."""
    sizes: dict[str, int] = {}
    for info in file.tensors.values():
        dtype = _DTYPES.get(info.kind, _QUANTIZED_DTYPE)
        sizes[dtype] = sizes.get(dtype, 0) + math.prod(info.shape)
    return max(sizes, key=sizes.__getitem__)


def _end_token_ids(file: GgufFile) -> list[int]:
    named = (_token_id(file, name) for name in _END_TOKENS)
    return list(dict.fromkeys([*(token_id for token_id in named if token_id is not None), *_ends_by_text(file)]))


def _ends_by_text(file: GgufFile) -> Iterator[int]:
    """Yield the control tokens with the text of an end token. The tokenizer refuses invalid lists."""
    tokens, kinds = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "token_type"))
    if not isinstance(tokens, list) or not isinstance(kinds, Numbers):
        return
    for token_id in (kinds.array[: len(tokens)] == _CONTROL).nonzero()[0].tolist():
        if tokens[token_id] in _END_TEXTS:
            yield token_id


def _token_id(file: GgufFile, name: str) -> int | None:
    token_id = file.metadata.get(f"tokenizer.ggml.{name}")
    if token_id is not None and type(token_id) is not int:
        raise ModelLoadError(f"{file.path} has tokenizer.ggml.{name} {token_id!r}; it must be a token id.")
    return token_id


def _rope(keys: _Keys, file: GgufFile, head_dim: int) -> dict[str, Any]:
    theta = keys.number("rope.freq_base", 10000.0)
    kind = keys.given("rope.scaling.type")
    scaling: dict[str, Any] = {"rope_type": "default"}
    if kind == "linear":
        scaling = {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
    elif kind == "yarn":
        scaling = _yarn(keys)
    elif kind not in (None, "none"):
        raise UnsupportedModelError(
            f"{file.path} has {keys.architecture}.rope.scaling.type {kind!r}; of GGUF files the engine runs none, "
            "linear and yarn."
        )
    if ROPE_FACTORS in file.tensors:
        if scaling["rope_type"] != "default":
            raise UnsupportedModelError(
                f"{file.path} has {ROPE_FACTORS} beside rope scaling {kind!r}; one is possible."
            )
        scaling = _llama3(file, head_dim=head_dim, theta=theta)
    return {**scaling, "rope_theta": theta}


def _yarn(keys: _Keys) -> dict[str, Any]:
    factor = keys.number("rope.scaling.factor")
    share = keys.number("rope.scaling.attn_factor", keys.number("rope.scaling.yarn_attn_factor", 1.0))
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": keys.whole("rope.scaling.original_context_length"),
        "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        "attention_factor": share * (0.1 * math.log(factor) + 1.0),
    }


def _llama3(file: GgufFile, *, head_dim: int, theta: float) -> dict[str, Any]:
    """Return the scaling of Llama 3 that gives the factors in the file. Raises UnsupportedModelError for others."""
    factors = read_tensor(file, ROPE_FACTORS).float()
    factor = float(factors.max())
    if bool((factors == 1.0).all()):
        return {"rope_type": "default"}
    expected = _llama3_factors(factor, head_dim=head_dim, theta=theta)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-4):
        raise UnsupportedModelError(
            f"{file.path} has factors in {ROPE_FACTORS} that are not those of Llama 3.1; give the model's folder with "
            "config.json and safetensors instead."
        )
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _llama3_factors(factor: float, *, head_dim: int, theta: float) -> torch.Tensor:
    """Return the frequencies' divisors: 1 for those of many turns within the first context, `factor` for few."""
    low, high, context = _LLAMA3.values()
    turns = context * theta ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim) / (2.0 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).float()
