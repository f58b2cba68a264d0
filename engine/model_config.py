"""Read a model directory's config.json into the few numbers the decoder needs, and refuse what it does not have.

transformers reads the file (it knows every old spelling); nothing here loads weights.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import ModelLoadError, UnsupportedModelError

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
_HUB_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A Llama-family decoder. `windows[i]` is layer i's sliding window in tokens, None for full attention.

    `rope` is transformers' configuration object, from which `rotary.py` makes the table of angles.
    """

    path: Path
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_model_len: int
    has_tied_embeddings: bool
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool
    windows: tuple[int | None, ...]
    eos_token_ids: tuple[int, ...]
    dtype: str
    rope: Any


def load_model_config(model: str) -> ModelConfig:
    """Read config.json of a directory (or a hub id). Raises ModelLoadError or UnsupportedModelError."""
    path = resolve_model_path(model)
    config = _read_with_transformers(path)
    _check_supported(config, path)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    has_attention_bias = bool(getattr(config, "attention_bias", False))
    return ModelConfig(
        path=path,
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        intermediate_size=config.intermediate_size,
        rms_norm_eps=config.rms_norm_eps,
        max_model_len=config.max_position_embeddings,
        has_tied_embeddings=bool(config.tie_word_embeddings),
        has_qkv_bias=config.model_type == "qwen2" or (config.model_type != "mistral" and has_attention_bias),
        has_output_bias=config.model_type in ("llama", "qwen3") and has_attention_bias,
        has_mlp_bias=config.model_type == "llama" and bool(config.mlp_bias),
        has_qk_norm=config.model_type == "qwen3",
        windows=_windows(config),
        eos_token_ids=_eos_token_ids(config, path),
        dtype=str(getattr(config, "dtype", None) or "float32").removeprefix("torch."),
        rope=config,
    )


def resolve_model_path(model: str) -> Path:
    """Return the model's directory; a name like `org/model` that is no directory is fetched from the hub."""
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(
                f"{path} has no config.json; give a model directory as transformers' save_pretrained writes it."
            )
        return path
    is_hub_id = model.count("/") == 1 and not model.startswith((".", "/", "~")) and not path.exists()
    if not is_hub_id:
        raise ModelLoadError(f"There is no model directory at {path}; give a directory with config.json.")
    return _fetch_from_hub(model)


def _fetch_from_hub(model: str) -> Path:
    from huggingface_hub import snapshot_download  # noqa: PLC0415 - a slow import that local models do not need

    try:
        return Path(snapshot_download(model, allow_patterns=_HUB_FILES))
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelLoadError(
            f"{model} is neither a directory nor a model that could be fetched from the Hugging Face hub ({reason})."
        ) from error


def _read_with_transformers(path: Path) -> Any:
    try:
        raw = json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path / 'config.json'} cannot be read as JSON: {error}.") from error
    model_type = raw.get("model_type") if isinstance(raw, dict) else None
    if model_type not in _ARCHITECTURES:
        raise UnsupportedModelError(f"{path} has model_type {model_type!r}; supported are {', '.join(_ARCHITECTURES)}.")
    from transformers import AutoConfig  # noqa: PLC0415 - a slow import; the checks above do not need it

    try:
        return AutoConfig.from_pretrained(path)
    except (ValueError, TypeError, KeyError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"{path / 'config.json'} is not a valid {model_type} configuration: {reason}.") from error


def _check_supported(config: Any, path: Path) -> None:
    wanted = _ARCHITECTURES[config.model_type]
    architectures = getattr(config, "architectures", None) or [wanted]
    if wanted not in architectures:
        raise UnsupportedModelError(
            f"{path} is a {architectures[0]}; of {config.model_type} only {wanted} is supported."
        )
    if getattr(config, "quantization_config", None):
        raise UnsupportedModelError(f"{path} is quantized (quantization_config); use the unquantized weights.")
    if config.hidden_act != "silu":
        raise UnsupportedModelError(f"{path} has hidden_act {config.hidden_act!r}; supported is 'silu'.")
    rope = config.rope_parameters
    if rope["rope_type"] not in _ROPE_TYPES:
        raise UnsupportedModelError(
            f"{path} has rope_type {rope['rope_type']!r}; supported are {', '.join(_ROPE_TYPES)}."
        )
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedModelError(
            f"{path} has partial_rotary_factor {rope['partial_rotary_factor']}; supported is 1."
        )
    for layer_type in _layer_types(config):
        if layer_type not in ("full_attention", "sliding_attention"):
            raise UnsupportedModelError(
                f"{path} has a layer of type {layer_type!r}; supported are full_attention and sliding_attention."
            )


def _layer_types(config: Any) -> list[str]:
    """Return each layer's type; transformers reads `layer_types` only in the Qwen models."""
    if config.model_type in ("qwen2", "qwen3"):
        return list(config.layer_types)
    has_window = config.model_type == "mistral" and config.sliding_window is not None
    return ["sliding_attention" if has_window else "full_attention"] * int(config.num_hidden_layers)


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    return tuple(window if kind == "sliding_attention" else None for kind in _layer_types(config))


def _eos_token_ids(config: Any, path: Path) -> tuple[int, ...]:
    """Return the end-of-sequence tokens; generation_config.json, where there is one, decides as in transformers."""
    eos = config.eos_token_id
    generation = path / "generation_config.json"
    if generation.is_file():
        try:
            eos = json.loads(generation.read_text()).get("eos_token_id", eos)
        except ValueError as error:
            raise ModelLoadError(f"{generation} cannot be read as JSON: {error}.") from error
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
