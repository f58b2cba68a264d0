"""Tests that every op has tests that run it, a place on the emulated device and a row in the table of ops.

Reads sources, so it also works without a GPU and Triton.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "kernels"


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def _names(path: Path) -> set[str]:
    """Return every name that a module's code reads; names that are only imported do not count."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def _is_kernel(function: ast.FunctionDef) -> bool:
    return "jit" in {node.id for one in function.decorator_list for node in ast.walk(one) if isinstance(node, ast.Name)}


MODULES = {path: _functions(path) for path in sorted((ROOT / "kernels").glob("*.py"))}
OPS = {
    name.removesuffix("_reference"): path
    for path, functions in MODULES.items()
    for name in functions
    if name.endswith("_reference")
}


@pytest.mark.parametrize("op", OPS)
def test_an_op_is_run_in_every_way_that_there_is(op: str) -> None:
    twin, triton = f"{op}_reference", f"{op}_triton"
    assert {twin, triton} <= _names(TESTS / "interpreted_kernels.py"), "its kernel under the interpreter"
    assert {op, twin} <= _names(TESTS / "test_gpu.py"), "the op on a GPU"
    assert triton in _names(TESTS / "test_ahead_of_time.py"), "its kernel compiled ahead of time"
    others = set(TESTS.rglob("test_*.py")) - {TESTS / "test_gpu.py", TESTS / "test_ahead_of_time.py"}
    assert any({op, twin} & _names(path) for path in others), "its meaning, against something other than its kernel"


@pytest.mark.parametrize("op", OPS)
def test_an_op_has_a_row_in_the_table_of_ops(op: str) -> None:
    rows = [line for line in (ROOT / "kernels" / "README.md").read_text().splitlines() if line.startswith("| `")]
    assert any(f"`{op}`" in row.split("|")[1] and OPS[op].name in row.split("|")[2] for row in rows)


def test_every_module_that_launches_kernels_is_on_the_emulated_device() -> None:
    source = (ROOT / "tests" / "engine" / "emulated_cuda.py").read_text()
    (given,) = (
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAUNCHING"
    )
    named = {name.id for name in ast.walk(given) if isinstance(name, ast.Name)} - {
        "grouped_linear_triton",
        "paged_attention_triton",
    }
    assert named == {path.stem for path, functions in MODULES.items() if any(map(_is_kernel, functions.values()))}
