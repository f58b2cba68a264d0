"""Tests of the training script on a few steps: its targets, and that interrupted runs end like uninterrupted ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from examples.demo_tokenizer import train_tokenizer
from examples.train_demo_model import IGNORED, Settings, copy_batch, document_batch, rate_factor, train

pytestmark = pytest.mark.long

SETTINGS = Settings(steps=4, copy_steps=2, batch_size=4, warmup_steps=1, matrix_rate=1e-3, other_rate=1e-3, seed=7)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(seed=7, num_documents=500)


def test_a_document_batch_trains_on_the_answer_and_its_end_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = document_batch(0, tokenizer, SETTINGS)
    for targets in batch.targets:
        answer = tokenizer.decode(targets[targets != IGNORED])
        assert answer.startswith('{"type":"')
        assert answer.endswith('"}' + str(tokenizer.eos_token))


def test_targets_are_the_tokens_one_position_later(tokenizer: PreTrainedTokenizerFast) -> None:
    for batch in (document_batch(0, tokenizer, SETTINGS), copy_batch(0, len(tokenizer), SETTINGS)):
        shifted, targets = batch.tokens[:, 1:], batch.targets[:, :-1]
        assert torch.equal(shifted[targets != IGNORED], targets[targets != IGNORED])
        assert (batch.targets[:, -1] == IGNORED).all()


def test_the_rate_warms_up_to_its_peak_and_falls_to_almost_nothing() -> None:
    settings = replace(SETTINGS, steps=100, warmup_steps=10)
    rates = [rate_factor(step, settings) for step in range(100)]
    assert rates[9] == rates[10] == max(rates) == 1
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.03


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train all steps; the folder holds the model directory `whole` and the checkpoint of the step before the last."""
    folder = tmp_path_factory.mktemp("run")
    train(SETTINGS, checkpoint=folder / "checkpoint.pt", output=folder / "whole", save_every=3)
    return folder


def test_a_run_that_goes_on_from_its_checkpoint_ends_in_the_same_weights(run: Path, tmp_path: Path) -> None:
    train(SETTINGS, checkpoint=run / "checkpoint.pt", output=tmp_path, save_every=100)
    names = {path.name for path in (run / "whole").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= names
    for name in names:
        assert (tmp_path / name).read_bytes() == (run / "whole" / name).read_bytes(), name


def test_a_checkpoint_of_other_settings_is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="Use the same options, or remove the checkpoint"):
        train(replace(SETTINGS, batch_size=5), checkpoint=run / "checkpoint.pt", output=tmp_path, save_every=100)


def test_a_run_may_end_earlier_than_planned(run: Path, tmp_path: Path) -> None:
    train(replace(SETTINGS, steps=3), checkpoint=run / "checkpoint.pt", output=tmp_path, save_every=100)
    assert (tmp_path / "model.safetensors").exists()
