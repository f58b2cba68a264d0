"""Tests that code which comes with a model is never run, whatever stdin says."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.tiny_models import save_tiny

ROOT = Path(__file__).resolve().parents[2]
DEMO_TOKENIZER = ROOT / "examples" / "demo_model" / "tokenizer.json"
OURS = (
    "api",
    "benchmarks",
    "cli",
    "engine",
    "examples",
    "features",
    "jobs",
    "kernels",
    "lab",
    "protocol",
    "scripts",
    "workers",
)

CODE = """
from pathlib import Path
Path({marker!r}).touch()
from transformers import LlamaConfig as Config, LlamaForCausalLM as Model, PreTrainedTokenizerFast as Strange
"""

LOAD = """
import sys
from pathlib import Path
from engine.config import EngineConfig, ModelImpl
from engine.build import build_engine
from engine.errors import EngineError
from engine.tokenizer import load_tokenizer

path = sys.argv[1]
for load in (
    lambda: load_tokenizer(Path(path)),
    lambda: build_engine(EngineConfig(model=path, num_kv_blocks=8, device="cpu")),
    lambda: build_engine(EngineConfig(model=path, num_kv_blocks=8, device="cpu", model_impl=ModelImpl.TRANSFORMERS)),
):
    try:
        load()
    except EngineError as error:
        print(f"refused: {error}")
print("asked everything")
"""


@pytest.mark.parametrize("model_type", ["llama", "strange"])
def test_nothing_that_came_with_a_model_is_run_when_stdin_says_yes(tmp_path: Path, model_type: str) -> None:
    model, marker = tmp_path / "model", tmp_path / "ran"
    save_tiny(model, {"model_type": "llama"})
    shutil.copy(DEMO_TOKENIZER, model)
    (model / "own.py").write_text(CODE.format(marker=str(marker)))
    config = json.loads((model / "config.json").read_text())
    classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model", "AutoTokenizer": ["own.Strange"] * 2}
    (model / "config.json").write_text(json.dumps({**config, "model_type": model_type, "auto_map": classes}))
    own_tokenizer = {"tokenizer_class": "Strange", "auto_map": {"AutoTokenizer": ["own.Strange", "own.Strange"]}}
    (model / "tokenizer_config.json").write_text(json.dumps(own_tokenizer))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(model)],
        cwd=ROOT,
        input="y\n" * 50,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert "asked everything" in done.stdout, done.stderr[-2000:]
    assert not marker.exists(), done.stdout
    if model_type == "strange":
        assert done.stdout.count("refused") == 3


def calls_that_may_ask(path: Path) -> Iterator[str]:
    """Yield the calls that load a class which a model's own files may name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner, name = node.func.value, node.func.attr
        if name not in ("from_pretrained", "from_config") or not isinstance(owner, ast.Name):
            continue
        if not owner.id.startswith(("Auto", "OVModel")):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        trust = given.get("trust_remote_code")
        if not (isinstance(trust, ast.Constant) and trust.value is False):
            yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_load_says_that_no_code_is_to_be_trusted() -> None:
    """Left out, transformers asks on the terminal."""
    paths = [path for package in OURS for path in sorted((ROOT / package).rglob("*.py"))]
    assert [call for path in paths for call in calls_that_may_ask(path)] == []
