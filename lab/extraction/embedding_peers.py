"""Peers of `Embedder`: transformers, sentence-transformers and onnxruntime on the same weights.

Only transformers is a dependency: packages that are not installed are left out with a reason.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from engine.pooling.json_files import read_object
from engine.pooling.purposes import ENCODERS
from engine.pooling.recipe import Pooling, read_recipe

Vectors = npt.NDArray[np.float32]
Embed = Callable[[list[str]], Vectors]

_PADDED_BATCH = 32
"""Default of sentence-transformers' `encode`, after sorting texts by length as is done here."""


def find_peers(path: Path, *, num_threads: int, max_tokens: int) -> dict[str, Embed | str]:
    """Return, by name, a function that makes normalized vectors, or the reason why there is none."""
    onnxruntime: Embed | str = "left out: only encoders are exported"
    if _is_encoder(path):
        onnxruntime = _if_installed(
            lambda: _by_onnxruntime(path, max_tokens, num_threads), "onnxruntime onnx onnxscript"
        )
    return {
        "transformers": _by_transformers(path, max_tokens),
        "sentence-transformers": _if_installed(lambda: _by_sentence_transformers(path), "sentence-transformers"),
        "onnxruntime": onnxruntime,
    }


def _is_encoder(path: Path) -> bool:
    return read_object(path / "config.json").get("model_type") in ENCODERS


def _if_installed(find: Callable[[], Embed], packages: str) -> Embed | str:
    try:
        return find()
    except ImportError as error:
        return f"left out: {error}; pip install {packages}"


def _by_transformers(path: Path, max_tokens: int) -> Embed:
    model = AutoModel.from_pretrained(path, dtype=torch.float32, trust_remote_code=False)

    @torch.inference_mode()
    def rows(inputs: dict[str, Any]) -> Any:
        return model(**{name: torch.from_numpy(each) for name, each in inputs.items()}).last_hidden_state.numpy()

    return _in_padded_batches(path, max_tokens, rows)


def _by_sentence_transformers(path: Path) -> Embed:
    model = importlib.import_module("sentence_transformers").SentenceTransformer(str(path), device="cpu")

    def embed(texts: list[str]) -> Vectors:
        vectors: Vectors = model.encode(texts, batch_size=_PADDED_BATCH, normalize_embeddings=True)
        return vectors

    return embed


def _by_onnxruntime(path: Path, max_tokens: int, num_threads: int) -> Embed:
    """Return an embedder that runs an export of the model with all of onnxruntime's optimizations, its default."""
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        _export(path, file)
        session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return _in_padded_batches(path, max_tokens, lambda inputs: session.run(None, inputs)[0])


class _Rows(torch.nn.Module):
    """An encoder with positional inputs, which returns only its last layer's rows."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        return self._encoder(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


def _export(path: Path, file: Path) -> None:
    encoder = AutoModel.from_pretrained(path, dtype=torch.float32, trust_remote_code=False).eval()
    ids, ones, zeros = (torch.full((2, 8), each) for each in (3, 1, 0))  # one tensor used twice would become one input
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own exporter warns about torch
        torch.onnx.export(
            _Rows(encoder).eval(),
            (ids, ones, zeros),
            file,
            dynamo=True,
            input_names=("input_ids", "attention_mask", "token_type_ids"),
            dynamic_shapes=({0: batch, 1: length},) * 3,
            verbose=False,
        )


def _in_padded_batches(path: Path, max_tokens: int, rows: Callable[[dict[str, Any]], Any]) -> Embed:
    """Return an embedder for padded batches sorted by length, pooled under a mask, as the models' cards do."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False, padding_side="right")
    pooling, is_encoder = read_recipe(path, None).pooling, _is_encoder(path)

    def batches(texts: list[str]) -> Iterator[tuple[list[int], dict[str, Any]]]:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        for start in range(0, len(order), _PADDED_BATCH):
            batch = order[start : start + _PADDED_BATCH]
            batch_texts = [texts[index] for index in batch]
            inputs = tokenizer(batch_texts, padding=True, truncation=True, max_length=max_tokens, return_tensors="np")
            types = {"token_type_ids": np.zeros_like(inputs["input_ids"])} if is_encoder else {}
            yield batch, types | dict(inputs)

    def embed(texts: list[str]) -> Vectors:
        pooled = [(batch, _pooled(rows(inputs), inputs["attention_mask"], pooling)) for batch, inputs in batches(texts)]
        vectors = np.concatenate([own for _, own in pooled]).astype(np.float32)
        order = np.argsort([index for batch, _ in pooled for index in batch])
        ordered: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True))[order]
        return ordered

    return embed


def _pooled(rows: Any, mask: Any, pooling: Pooling) -> Any:
    """Pool padded rows [texts, longest, hidden] to [texts, hidden]; the padding follows each text."""
    match pooling:
        case Pooling.CLS:
            return rows[:, 0]
        case Pooling.LAST_TOKEN:
            return rows[np.arange(len(rows)), mask.sum(1) - 1]
        case Pooling.MEAN:
            return (rows * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
