"""What the engine's tests make once a session: tiny models on disk.

Builders that need torch are imported late: the scheduler's tests run without it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.engine.tiny_models import TinyModel, TinyModels

# A GPU machine may have the engine's own requirements and no more.
_NEEDS = {
    "hypothesis": [
        "scheduling/test_scheduler_machine.py",
        "speculation/test_prompt_lookup.py",
        "test_text_properties.py",
    ],
    "jsonschema_rs": [
        "test_emulated_cuda.py",
        "grammars/test_structured_batches.py",
        "grammars/test_structured_output.py",
    ],
    "llguidance": [
        "test_emulated_cuda.py",
        "grammars/test_forced_tokens.py",
        "grammars/test_grammar.py",
        "grammars/test_slow_grammars.py",
        "grammars/test_structured_batches.py",
        "grammars/test_structured_output.py",
    ],
    "msgspec": ["device/test_energy.py", "process/test_outbox.py", "process/test_parent.py"],
}
collect_ignore = [name for package, names in _NEEDS.items() if find_spec(package) is None for name in names]


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    from tests.engine.tiny_models import TinyModels

    return TinyModels(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def worded(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """The tiny Llama with a tokenizer and a chat template."""
    from tests.engine.worded import make_worded

    return make_worded(tiny_models["llama-gqa"], tmp_path_factory.mktemp("worded") / "model")


@pytest.fixture(scope="session")
def grammar_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of a random model with a tokenizer of real text."""
    from tests.engine.grammars.builders import save_grammar_model

    path = tmp_path_factory.mktemp("grammar-model")
    save_grammar_model(path)
    return path
