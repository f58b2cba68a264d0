"""Tests of reading the sampling that a model's generation_config.json suggests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.errors import ModelLoadError
from engine.suggested_sampling import suggested_sampling


def written(path: Path, content: Any) -> Path:
    (path / "generation_config.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_the_sampling_of_the_file_is_read_and_nothing_else(tmp_path: Path) -> None:
    suggested = {"temperature": 0.6, "top_p": 0.95, "top_k": 20}
    model = written(tmp_path, {**suggested, "do_sample": True, "eos_token_id": [1, 2], "min_p": None})
    assert suggested_sampling(model) == suggested


def test_a_model_without_the_file_suggests_nothing(tmp_path: Path) -> None:
    assert suggested_sampling(tmp_path) == {}


@pytest.mark.parametrize(
    ("content", "named"), [("{", "cannot be read"), ("[]", "cannot be read"), ({"top_p": 2}, "top_p is 2")]
)
def test_a_wrong_file_is_refused_with_its_name(tmp_path: Path, content: Any, named: str) -> None:
    with pytest.raises(ModelLoadError, match=named) as caught:
        suggested_sampling(written(tmp_path, content))
    assert "generation_config.json" in str(caught.value)
