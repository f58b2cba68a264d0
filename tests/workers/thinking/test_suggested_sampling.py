"""Tests of the sampling that a model's files suggest, for lines that do not set their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from jobs.lines.reading import InputLine
from tests.workers.thinking.builders import CONTEXT, VOCAB
from workers.model_files import fingerprint_of
from workers.prompts import PromptMaker

SUGGESTED = {"temperature": 0.6, "top_k": 20}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(("endpoint", "body"), [(CHAT_ENDPOINT, CHAT), (COMPLETION_ENDPOINT, {"prompt": "Hi"})])
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, (0.6, 20)), ({"temperature": 1.0}, (1.0, 20)), ({"temperature": 0, "top_k": -1}, (0.0, -1))],
)
def test_a_line_has_the_suggested_sampling_where_it_sets_none(
    tokenizer: Any, endpoint: str, body: dict[str, Any], given: dict[str, Any], expected: tuple[float, int]
) -> None:
    maker = PromptMaker(tokenizer, max_model_len=CONTEXT, vocab_size=VOCAB * 2, defaults=SUGGESTED)
    line = InputLine(line_no=0, custom_id="a", model="demo", body={"model": "demo", **body, **given})
    params = maker.prepare(line, endpoint=endpoint, batch_id="batch_1").params
    assert (params.temperature, params.top_k) == expected


def test_output_of_other_defaults_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert fingerprint_of(tmp_path) == fingerprint_of(tmp_path, defaults={})
    assert fingerprint_of(tmp_path) != fingerprint_of(tmp_path, defaults=SUGGESTED)
