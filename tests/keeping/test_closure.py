"""Tests of what counts as used by a module: too many files cost time, one too few keeps an outdated result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.keeping.closure import Tree

ROOT = Path(__file__).resolve().parents[2]
Used = Callable[[str], set[str]]

FILES = {
    "ours/__init__.py": "",
    "ours/one.py": "from ours import two\n",
    "ours/two.py": "",
    "ours/rooms/deep.py": "def later():\n    import ours.late\n",
    "ours/late.py": "",
    "ours/table.json": "{}",
    "ours/notes.md": "",
    "other/__init__.py": "",
    "other/run.py": "",
    "data/model/config.json": "{}",
    "data/model/weights.bin": "",
    "data/large.txt": "",
}


@pytest.fixture
def used(tmp_path: Path) -> Used:
    """Return a function that writes a module and returns the files below the root that it depends on."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def find(text: str) -> set[str]:
        (tmp_path / "tests").mkdir(exist_ok=True)
        (tmp_path / "tests" / "test_it.py").write_text(text)
        found = Tree(tmp_path).closure(tmp_path / "tests" / "test_it.py")
        return {str(path.relative_to(tmp_path)) for path in found} - {"tests/test_it.py"}

    return find


PACKAGE = {"ours/__init__.py", "ours/table.json"}


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("import json\n", set()),
        ("import ours.two\n", {*PACKAGE, "ours/two.py"}),
        ("from ours.two import name\n", {*PACKAGE, "ours/two.py"}),
        ("from ours import one\n", {*PACKAGE, "ours/one.py", "ours/two.py"}),
        ("import ours.rooms.deep\n", {*PACKAGE, "ours/rooms/deep.py", "ours/late.py"}),
        ("run(['-m', 'other.run'])\n", {"other/__init__.py", "other/run.py"}),
        ("run('import other.run')\n", {"other/__init__.py", "other/run.py"}),
        ("run('other/run.py')\n", {"other/run.py"}),
        ("ROOT / 'data' / 'model'\n", {"data/model/config.json", "data/model/weights.bin"}),
        ("ROOT / 'data' / 'model' / 'config.json'\n", {"data/model/config.json"}),
        ("read('data/large.txt')\n", {"data/large.txt"}),
        ("x = 'ours'\n", set()),
        ("'''Prose of ours.two.'''\n", set()),
    ],
)
def test_a_module_is_made_of_what_it_imports_and_names(text: str, files: set[str], used: Used) -> None:
    assert used(text) == files


@pytest.mark.parametrize("module", ["test_matrix.py", "models/test_decoder.py"])
def test_comparisons_of_the_engine_hang_on_its_code_and_on_no_other(module: str) -> None:
    found = {path.relative_to(ROOT) for path in Tree(ROOT).closure(ROOT / "tests" / "engine" / module)}
    assert {
        Path("engine/models/decoder.py"),
        Path("kernels/cpu/row_ops.py"),
        Path("tests/engine/tiny_models.py"),
    } <= found
    assert {path.parts[0] for path in found} <= {"docs", "engine", "kernels", "protocol", "tests"}
