"""What goes into the wheel, and the name `kernels`, which transformers looks for too."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_SHIPPED = {"tests", "examples"}  # read from a checkout, not from an installation


def test_the_wheel_lists_every_package_of_the_checkout() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = set(settings["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    present = {path.parent.name for path in ROOT.glob("*/*.py")} - NOT_SHIPPED
    assert listed == present


def test_mypy_looks_at_every_package_of_the_wheel_and_at_the_tests() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert set(settings["mypy"]["files"]) == {*settings["hatch"]["build"]["targets"]["wheel"]["packages"], "tests"}


def test_ruff_knows_every_package_of_the_checkout_as_ours() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    ours = {*settings["hatch"]["build"]["targets"]["wheel"]["packages"], *NOT_SHIPPED}
    assert set(settings["ruff"]["lint"]["isort"]["known-first-party"]) == ours


def test_transformers_builds_a_llama_with_our_kernels_folder_first_on_the_path() -> None:
    script = (
        "import kernels, transformers\n"
        "config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,\n"
        "    num_key_value_heads=1, intermediate_size=32, vocab_size=64)\n"
        "model = transformers.LlamaForCausalLM(config)\n"
        "print(kernels.__file__, sum(p.numel() for p in model.parameters()) > 0)\n"
    )
    outcome = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.split() == [str(ROOT / "kernels" / "__init__.py"), "True"]
