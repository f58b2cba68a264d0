"""Tests of the embeddings benchmark: its texts are reproducible, and all sides make the same vectors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lab.extraction.__main__ import main
from lab.extraction.embeddings import make_texts, whole_words
from tests.engine.pooling.builders import WORDS, Folder, make_folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    found = make_folder(tmp_path)
    found.write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    return found


@pytest.fixture
def _threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def largest_difference(shown: str) -> float:
    found = re.search(r"difference of the vectors in float32: (\S+);", shown)
    assert found is not None
    return float(found[1])


def test_texts_come_from_the_seed() -> None:
    first = make_texts(WORDS, num_texts=20, seed=1)
    assert first == make_texts(WORDS, num_texts=20, seed=1) != make_texts(WORDS, num_texts=20, seed=2)
    assert all(set(text.split()) <= set(WORDS) for text in first)


def test_words_are_whole_words_of_the_tokenizer(folder: Folder) -> None:
    assert whole_words(folder.path) == sorted(WORDS)


@pytest.mark.usefixtures("_threads_as_before")
def test_sides_make_the_same_vectors_and_a_peer_that_is_missing_is_named(
    folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sentence_transformers", "onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    options = ["--texts", "40", "--turns", "1", "--num-threads", "1"]
    assert main(["embeddings", "--model", str(folder.path), *options]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^40 texts, \d+ tokens, 1 threads, load [\d.]+$", shown, re.MULTILINE)
    for dtype in ("float32", "bfloat16"):
        assert re.search(rf"^tokenmill +{dtype} +[\d.]+ texts/s +[\d.]+ CPU s$", shown, re.MULTILINE)
        assert re.search(rf"^openvino +{dtype} +not run: .*; pip install openvino$", shown, re.MULTILINE)
    assert re.search(r"^transformers .* tokenmill is [\d.]+ times as fast, in CPU time.* [\d.]+$", shown, re.MULTILINE)
    for name, packages in (
        ("sentence-transformers", "sentence-transformers"),
        ("onnxruntime", "onnxruntime onnx onnxscript"),
    ):
        assert re.search(rf"^{name} +float32 +not run: .*; pip install {packages}$", shown, re.MULTILINE)
    assert largest_difference(shown) < 1e-5


@pytest.mark.usefixtures("_threads_as_before")
def test_texts_may_be_those_of_a_collection(folder: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"kind": "document", "id": str(index), "text": "the sea is cold"} for index in range(5)]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = ["--documents", str(tmp_path / "documents.jsonl"), "--texts", "3", "--turns", "1", "--dtypes", "float32"]
    assert main(["embeddings", "--model", str(folder.path), *options]) == 0
    assert "3 texts, 18 tokens" in capsys.readouterr().out


@pytest.mark.usefixtures("_threads_as_before")
@pytest.mark.parametrize(("model_type", "pooling"), [("qwen3", "lasttoken"), ("bert", "cls")])
def test_other_poolings_are_those_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model_type: str, pooling: str
) -> None:
    pads = {"qwen3": "<|endoftext|>", "bert": "[PAD]"}
    found = make_folder(tmp_path, model_type, pooling=pooling)
    found.write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": pads[model_type]})
    options = ["--texts", "40", "--turns", "1", "--num-threads", "1", "--dtypes", "float32"]
    assert main(["embeddings", "--model", str(tmp_path), *options]) == 0
    assert largest_difference(capsys.readouterr().out) < 1e-5


@pytest.mark.usefixtures("_threads_as_before")
@pytest.mark.parametrize("name", ["sentence_transformers", "onnxruntime", "openvino"])
def test_a_peer_that_is_installed_makes_the_same_vectors(
    folder: Folder, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    pytest.importorskip(name)
    assert main(["embeddings", "--model", str(folder.path), "--texts", "20", "--turns", "1"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"^{name.replace('_', '-')} +float32 +[\d.]+ texts/s", shown, re.MULTILINE)
    assert largest_difference(shown) < 1e-5


class QueueOfOne:
    """OpenVINO's queue of requests, which runs each where it is started."""

    made = 0

    def __init__(self, model: torch.nn.Module) -> None:
        type(self).made += 1
        self._model = model

    def set_callback(self, callback: Callable[[Any, int], None]) -> None:
        self._callback = callback

    @torch.inference_mode()
    def start_async(self, inputs: list[Any], index: int) -> None:
        rows = self._model(*map(torch.from_numpy, inputs)).numpy()
        self._callback(SimpleNamespace(get_output_tensor=lambda _: SimpleNamespace(data=rows)), index)

    def wait_all(self) -> None:
        """Every request is done."""


@pytest.mark.usefixtures("_threads_as_before")
def test_openvino_makes_its_queue_once_and_outside_what_is_timed(
    folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    core = SimpleNamespace(compile_model=lambda model, *_: model)
    openvino = SimpleNamespace(
        convert_model=lambda model, **_: model, Core=lambda: core, AsyncInferQueue=type("Queue", (QueueOfOne,), {})
    )
    monkeypatch.setitem(sys.modules, "openvino", openvino)
    options = ["--texts", "70", "--turns", "3", "--num-threads", "1", "--dtypes", "float32"]
    assert main(["embeddings", "--model", str(folder.path), *options]) == 0
    assert openvino.AsyncInferQueue.made == 1
    assert largest_difference(capsys.readouterr().out) < 1e-5


@pytest.mark.parametrize("dtypes", ["fp8", "float32,fp8", ""])
def test_a_dtype_that_is_not_computed_is_refused_with_those_that_are(
    folder: Folder, capsys: pytest.CaptureFixture[str], dtypes: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["embeddings", "--model", str(folder.path), "--dtypes", dtypes])
    assert ended.value.code == 2
    assert "float32, bfloat16, int8" in capsys.readouterr().err


def test_a_dtype_that_the_model_lacks_is_an_error_in_a_line(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embeddings", "--model", str(folder.path), "--dtypes", "int8"]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_other_parts_are_measured_without_torch() -> None:
    program = (
        "import sys; from lab.extraction.__main__ import main; "
        "main(['alignment', '--texts', '1', '--json']); print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "False"
