"""Create a model of transformers' classes: with the weights of its files, read by our own code, or with random ones."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from engine.errors import ModelLoadError, UnsupportedModelError
from engine.models.config import CheckpointConfig
from engine.models.paths import described_by
from engine.models.weights import Checkpoint


def load_model(config: CheckpointConfig, *, dtype: torch.dtype) -> Any:
    """Load the weights into transformers' class on the CPU; every weight must be in the files.

    Our own code reads and dequantizes them: transformers takes FP8 only with accelerate installed, and gets the blocks
    wrong if the last one is partial (5.23); MXFP4 it turns into bf16, whatever the dtype (5.17). Raises ModelLoadError,
    or UnsupportedModelError if the class would compute the logits of every token.
    """
    try:
        with torch.device("meta"):
            empty = _build(config, dtype=dtype)  # to know the class, and the configuration of the text alone
        with (
            Checkpoint(
                config.path, dtype=dtype, quantization=config.quantization, is_part=config.is_part
            ) as checkpoint,
            _without_progress_bar(),
            _reports_about(config.path),
        ):
            model, report = type(empty).from_pretrained(
                None,
                config=empty.config,
                state_dict=checkpoint.tensors(),
                dtype=dtype,
                attn_implementation="eager",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelLoadError(f"transformers cannot load {config.path}: {reason}.") from error
    _check_report(report, config.path)
    return _for_serving(model, config)


def to_device(model: Any, device: torch.device) -> Any:
    """Return a loaded model on the device; on a CPU its weights were views of the files until now."""
    if device.type == "cpu":
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = tensor.data.clone()
    return model.to(device)


def make_model(config: CheckpointConfig, *, dtype: torch.dtype, device: torch.device, seed: int) -> Any:
    """Create transformers' class on the device with the weights that its own initialiser draws from the seed.

    Raises UnsupportedModelError like `load_model`.
    """
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), device:
        torch.manual_seed(seed)
        model = _build(config, dtype=dtype)
    return _for_serving(model, config)


def _build(config: CheckpointConfig, *, dtype: torch.dtype) -> Any:
    """Create transformers' class; config.json may name another dtype, an attention function and code of its own.

    Raises ModelLoadError if its code fails.
    """
    try:
        return AutoModelForCausalLM.from_config(
            config.source, dtype=dtype, attn_implementation="eager", trust_remote_code=False
        )
    except (AttributeError, KeyError, TypeError, ValueError, ImportError) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ModelLoadError(
            f"transformers' code of {config.model_type} cannot make a model of {described_by(config.path)} in "
            f"{config.path}: {reason}."
        ) from error


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    was_enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            transformers_logging.enable_progress_bar()


@contextmanager
def _reports_about(path: Path) -> Iterator[None]:
    """Make transformers' report on unexpected tensors name the model: it has tensors and no path, and prints None."""

    def name_model(record: logging.LogRecord) -> bool:
        record.msg = str(record.msg).replace("from: None\n", f"from: {path}\n", 1)
        return True

    logger = logging.getLogger(PreTrainedModel.__module__)
    logger.addFilter(name_model)
    try:
        yield
    finally:
        logger.removeFilter(name_model)


def _check_report(report: Mapping[str, Any], path: Path) -> None:
    missing, misshapen = sorted(report["missing_keys"]), sorted(report["mismatched_keys"])
    if missing:
        raise ModelLoadError(
            f"{path} has no tensor {missing[0]} ({len(missing)} missing); the weights do not belong to its "
            f"{described_by(path)}."
        )
    if misshapen:
        name, shape, expected = misshapen[0]
        raise ModelLoadError(
            f"{path}: tensor {name} has shape {tuple(shape)}, {described_by(path)} has {tuple(expected)} "
            f"({len(misshapen)} mismatched)."
        )


def _for_serving(model: Any, config: CheckpointConfig) -> Any:
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(
            f"{config.path}: {type(model).__name__} computes the logits of every token (no logits_to_keep)."
        )
    return model.eval().requires_grad_(False)
