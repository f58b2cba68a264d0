"""Tests of lines whose vectors or scores are not numbers: retried once by a reloaded model, then an unbilled error."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import BrokenRowError
from engine.pooling.embedder import Embedder
from engine.pooling.reranker import Reranker
from tests.engine.pooling.builders import make_cross_encoder
from tests.workers.pooling.builders import Desk, line
from workers.drain import Drain
from workers.pooling import pool_answers
from workers.pooling.scores import ScoreModel

STATES = "SELECT state, losses FROM chunk ORDER BY id"


class Breaking:
    """An encoder that breaks at texts of some lengths, until its files were read so many times."""

    def __init__(self, embedder: Embedder, *, at_lengths: Iterable[int], for_lives: int = 99) -> None:
        self._embedder = embedder
        self._at_lengths = set(at_lengths)
        self._lives_left = for_lives
        self.num_reloads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def reload(self) -> None:
        self.num_reloads += 1
        self._lives_left -= 1

    def embed_tokens(self, token_ids: list[Any]) -> Any:
        vectors = self._embedder.embed_tokens(token_ids)
        for vector, own in zip(vectors, token_ids, strict=True):
            if self._lives_left > 0 and len(own) in self._at_lengths:
                vector[1] = np.inf
        return vectors


@pytest.fixture
def lengths(embedder: Embedder) -> Callable[[str], int]:
    return lambda given: len(embedder.tokenize([given])[0].token_ids)


def test_a_line_that_breaks_once_is_answered_by_a_model_that_was_read_anew(
    desk: Desk, embedder: Embedder, lengths: Callable[[str], int]
) -> None:
    breaking = Breaking(embedder, at_lengths=[lengths("the sea is cold")], for_lives=1)
    batch_id = desk.submit([line(0, "ships sail"), line(1, ["ships", "the sea is cold"]), line(2, "port")])
    assert desk.run_next(embedder=breaking)
    found = desk.results(batch_id)
    assert [found[name]["response"]["status_code"] for name in ("c0", "c1", "c2")] == [200, 200, 200]
    assert breaking.num_reloads == 1
    assert desk.rows("SELECT count(*)::int FROM result WHERE input_tokens > 0") == [(3,)]


def test_a_line_that_breaks_twice_is_an_unbilled_error_and_the_others_are_answered(
    desk: Desk, embedder: Embedder, lengths: Callable[[str], int]
) -> None:
    breaking = Breaking(embedder, at_lengths=[lengths("the sea is cold")])
    batch_id = desk.submit([line(0, "ships sail"), line(1, "the sea is cold"), line(2, "port")])
    assert desk.run_next(embedder=breaking)
    found = desk.results(batch_id)
    assert found["c1"]["error"]["code"] == "engine_failure"
    assert [found[name]["response"]["status_code"] for name in ("c0", "c2")] == [200, 200]
    assert desk.rows("SELECT input_tokens FROM result WHERE line_no = 1") == [(0,)]
    assert desk.rows("SELECT sum(input_tokens) FROM ledger") == desk.rows("SELECT sum(input_tokens) FROM result")


def test_lines_that_break_one_after_the_other_go_to_another_worker_which_knows_of_them(
    desk: Desk, embedder: Embedder, lengths: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["sea", "the sea", "the sea is", "the sea is cold"]
    batch_id = desk.submit([line(number, one) for number, one in enumerate(texts)])
    drain = Drain()
    with monkeypatch.context() as patched:
        patched.setattr(pool_answers, "MAX_IN_A_ROW", 3)  # a chunk has four lines here
        assert not desk.run_next(embedder=Breaking(embedder, at_lengths=map(lengths, texts[1:])), drain=drain)
    assert drain.is_out
    assert desk.rows(STATES) == [("ready", 0)]
    assert desk.rows("SELECT line_no FROM result") == [(0,)]
    assert desk.rows("SELECT line_no, token_ids FROM checkpoint ORDER BY line_no") == [(1, []), (2, []), (3, [])]

    assert desk.run_next(embedder=Breaking(embedder, at_lengths=[lengths(texts[2])]))
    found = desk.results(batch_id)
    assert found["c2"]["error"]["code"] == "engine_failure", "its second end, the first here"
    assert [found[name]["response"]["status_code"] for name in ("c0", "c1", "c3")] == [200, 200, 200]


def test_a_worker_is_out_once_the_chunk_knows_what_broke(
    desk: Desk, embedder: Embedder, lengths: Callable[[str], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the chunk is released while the model is reloaded, and the next worker does not know of it."""
    drain, were_out = Drain(), []

    class Watching(Breaking):
        def reload(self) -> None:
            were_out.append(drain.is_out)
            super().reload()

    texts = ["sea", "the sea", "the sea is", "the sea is cold"]
    desk.submit([line(number, one) for number, one in enumerate(texts)])
    monkeypatch.setattr(pool_answers, "MAX_IN_A_ROW", 3)
    assert not desk.run_next(embedder=Watching(embedder, at_lengths=map(lengths, texts[1:])), drain=drain)
    assert (were_out, drain.is_out) == ([False], True)


def test_a_model_that_cannot_be_read_anew_takes_its_worker_out(
    desk: Desk, embedder: Embedder, lengths: Callable[[str], int]
) -> None:
    class Gone(Breaking):
        def reload(self) -> None:
            raise BrokenRowError("no files")

    drain = Drain()
    desk.submit([line(0, "ships sail"), line(1, "the sea is cold")])
    assert not desk.run_next(embedder=Gone(embedder, at_lengths=[lengths("the sea is cold")]), drain=drain)
    assert drain.is_out
    assert desk.rows(STATES) == [("ready", 0)]
    assert desk.rows("SELECT line_no FROM result") == [(0,)]


def broken_copy(folder: Path, path: Path) -> Path:
    """Return a copy of an encoder whose last word has NaN weights."""
    shutil.copytree(folder, path)
    weights = load_file(path / "model.safetensors")
    [words] = [name for name in weights if name.endswith("embeddings.word_embeddings.weight")]
    weights[words][-1] = torch.nan
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_embedding_a_text_that_breaks_says_which_and_reading_the_files_anew_mends_it(
    encoder_folder: Path, tmp_path: Path
) -> None:
    embedder = Embedder(broken_copy(encoder_folder, tmp_path / "model"))
    assert np.isfinite(embedder.embed(["the sea"]).vectors).all()
    with pytest.raises(BrokenRowError, match="text 1 is NaN"):
        embedder.embed(["the sea", "ships today"])
    shutil.copy(encoder_folder / "model.safetensors", tmp_path / "model" / "model.safetensors")
    embedder.reload()
    whole = Embedder(encoder_folder)
    np.testing.assert_array_equal(embedder.embed(["ships today"]).vectors, whole.embed(["ships today"]).vectors)
    assert embedder.embed([]).vectors.shape == (0, whole.dimensions)


def test_scores_that_break_say_so_and_are_mended_alike(tmp_path: Path) -> None:
    whole = make_cross_encoder(tmp_path / "whole", "bert").path
    reranker = Reranker(broken_copy(whole, tmp_path / "model"))
    with pytest.raises(BrokenRowError, match="text 1 is NaN"):
        reranker.score("the sea", ["is cold", "today"])
    model = ScoreModel(reranker)
    shutil.copy(whole / "model.safetensors", tmp_path / "model" / "model.safetensors")
    model.reload()
    assert np.isfinite(reranker.score("the sea", ["is cold", "today"]).scores).all()
