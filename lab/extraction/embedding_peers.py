"""Peers of `Embedder`: transformers, sentence-transformers, onnxruntime and OpenVINO on the same weights.

Only transformers is a dependency: a peer whose packages are not installed is not run, with the reason.
"""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from engine.pooling.json_files import read_object
from engine.pooling.purposes import ENCODERS
from engine.pooling.recipe import Pooling, read_recipe

Vectors = npt.NDArray[np.float32]
Embed = Callable[[list[str]], Vectors]
Inputs = dict[str, Any]
"""A padded batch: token ids, attention mask and token types, each int64 `[texts, longest]`."""
Rows = Callable[[Iterable[Inputs]], Iterable[Any]]
"""Returns the hidden rows `[texts, longest, hidden]` of each batch, in order."""

_PADDED_BATCH = 32
"""Default of sentence-transformers' `encode`, after sorting texts by length as is done here."""

_ONNX_PACKAGES = "onnxruntime onnx onnxscript"
_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
"""OpenVINO's names of the dtypes in which it computes."""

_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Peer(NamedTuple):
    """Another library, and the dtype in which it computes."""

    name: str
    dtype: str = "float32"


def find_peers(path: Path, *, num_threads: int, max_tokens: int, dtypes: Collection[str]) -> dict[Peer, Embed | str]:
    """Return, by peer, a function that makes normalized vectors, or the reason why it is not run."""
    peers: dict[Peer, Embed | str] = {
        Peer("transformers"): _by_transformers(path, max_tokens),
        Peer("sentence-transformers"): _if_installed(lambda: _by_sentence_transformers(path), "sentence-transformers"),
    }
    exported = {Peer("onnxruntime"): (partial(_by_onnxruntime, path, max_tokens, num_threads), _ONNX_PACKAGES)}
    for dtype in (one for one in _PRECISIONS if one in dtypes):
        make = partial(_by_openvino, path, max_tokens, num_threads, precision=_PRECISIONS[dtype])
        exported[Peer("openvino", dtype)] = (make, "openvino")
    for peer, (make, packages) in exported.items():
        peers[peer] = _if_installed(make, packages) if _is_encoder(path) else "not run: only encoders are exported"
    return peers


def _is_encoder(path: Path) -> bool:
    return read_object(path / "config.json").get("model_type") in ENCODERS


def _if_installed(find: Callable[[], Embed], packages: str) -> Embed | str:
    try:
        return find()
    except ImportError as error:
        return f"not run: {error}; pip install {packages}"


def _by_transformers(path: Path, max_tokens: int) -> Embed:
    model = AutoModel.from_pretrained(path, dtype=torch.float32, trust_remote_code=False)

    @torch.inference_mode()
    def rows(inputs: Inputs) -> Any:
        return model(**{name: torch.from_numpy(each) for name, each in inputs.items()}).last_hidden_state.numpy()

    return _in_padded_batches(path, max_tokens, partial(map, rows))


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
    return _in_padded_batches(path, max_tokens, partial(map, lambda inputs: session.run(None, inputs)[0]))


def _by_openvino(path: Path, max_tokens: int, num_threads: int, *, precision: str) -> Embed:
    """Return an embedder that runs a conversion of the model, as many batches at once as OpenVINO finds best."""
    openvino = importlib.import_module("openvino")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's tracer warns about transformers
        model = openvino.convert_model(_LastRows(_encoder(path)), example_input=_example())
    options = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": num_threads}
    compiled = openvino.Core().compile_model(model, "CPU", options | {"PERFORMANCE_HINT": "THROUGHPUT"})
    queue = openvino.AsyncInferQueue(compiled)

    def rows(batches: Iterable[Inputs]) -> Iterable[Any]:
        done: dict[int, Any] = {}
        queue.set_callback(lambda request, index: done.update({index: request.get_output_tensor(0).data.copy()}))
        for index, inputs in enumerate(batches):
            queue.start_async([inputs[name] for name in _INPUTS], index)
        queue.wait_all()
        return [done[index] for index in range(len(done))]

    return _in_padded_batches(path, max_tokens, rows)


class _LastRows(torch.nn.Module):
    """An encoder with positional inputs, which returns only its last layer's rows."""

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor) -> Any:
        return self._encoder(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


def _encoder(path: Path) -> Any:
    return AutoModel.from_pretrained(path, dtype=torch.float32, trust_remote_code=False).eval()


def _example() -> tuple[torch.Tensor, ...]:
    """Return inputs to trace with; one tensor used twice would become one input."""
    ids, ones, zeros = (torch.full((2, 8), each) for each in (3, 1, 0))
    return ids, ones, zeros


def _export(path: Path, file: Path) -> None:
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own exporter warns about torch
        torch.onnx.export(
            _LastRows(_encoder(path)).eval(),
            _example(),
            file,
            dynamo=True,
            input_names=_INPUTS,
            dynamic_shapes=({0: batch, 1: length},) * 3,
            verbose=False,
        )


def _in_padded_batches(path: Path, max_tokens: int, rows: Rows) -> Embed:
    """Return an embedder for padded batches sorted by length, pooled under a mask, as the models' cards do."""
    tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=False, padding_side="right")
    pooling, is_encoder = read_recipe(path, None).pooling, _is_encoder(path)

    def padded(texts: list[str]) -> Inputs:
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=max_tokens, return_tensors="np")
        return ({"token_type_ids": np.zeros_like(inputs["input_ids"])} if is_encoder else {}) | dict(inputs)

    def embed(texts: list[str]) -> Vectors:
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        batches = [order[start : start + _PADDED_BATCH] for start in range(0, len(order), _PADDED_BATCH)]
        inputs = [padded([texts[index] for index in batch]) for batch in batches]
        pooled = [_pooled(one, own["attention_mask"], pooling) for one, own in zip(rows(inputs), inputs, strict=True)]
        vectors = np.concatenate(pooled).astype(np.float32)
        ordered: Vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True))[np.argsort(order)]
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
