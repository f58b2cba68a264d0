"""The demo model's own tokenizer: real, small, offline."""

from pathlib import Path
from typing import Any

import pytest

DEMO_MODEL = Path(__file__).resolve().parents[2] / "examples" / "demo_model"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO_MODEL)
