from __future__ import annotations

from pathlib import Path

import pytest

from engine.llm import LLM


@pytest.fixture
def llm(grammar_model: Path) -> LLM:
    return LLM(grammar_model, dtype="float32", num_kv_blocks=600, max_num_seqs=64, warm_up=False)
