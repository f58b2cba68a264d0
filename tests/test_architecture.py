"""The arrows between packages, checked on every import statement, those inside functions too."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

OURS = {"api", "benchmarks", "cli", "engine", "examples", "jobs", "kernels", "migrations", "workers"}
WEB = {"fastapi", "starlette", "uvicorn"}
SQL = {"sqlalchemy", "psycopg", "alembic"}
QUEUE = {"celery", "kombu", "redis"}
TENSORS = {"torch", "transformers", "triton"}

FORBIDDEN = {
    "kernels": (OURS - {"kernels"}) | WEB | SQL | QUEUE | {"transformers"},
    "engine": (OURS - {"engine", "kernels"}) | WEB | SQL | QUEUE,
    "jobs": (OURS - {"jobs", "migrations"}) | WEB | QUEUE | TENSORS,
    "api": (OURS - {"api", "jobs"}) | QUEUE | TENSORS,
    "workers": (OURS - {"workers", "jobs", "engine"}) | WEB,
    "migrations": (OURS - {"migrations", "jobs"}) | WEB | QUEUE | TENSORS,
}

# What a GPU machine may have: the standard library, ours, and these (llvmlite comes with numba,
# huggingface_hub with transformers).
BARE = {
    "huggingface_hub",
    "llvmlite",
    "numba",
    "numpy",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
    "triton",
}
# The files of the engine that may need more, and what.
EXTRAS = {
    "engine/energy.py": {"pynvml"},
    "engine/grammar.py": {"llguidance"},
    "engine/messages.py": {"msgspec"},
}


def imports_of(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the top-level name and line of every import in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name.partition(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0], node.lineno


def violations(package: str, forbidden: set[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in imports_of(path)
        if name in forbidden
    ]


@pytest.mark.parametrize("package", sorted(FORBIDDEN))
def test_a_package_imports_only_along_the_arrows(package: str) -> None:
    assert violations(package, FORBIDDEN[package]) == []


@pytest.mark.parametrize("package", ["engine", "kernels"])
def test_engine_and_kernels_need_no_more_than_a_gpu_machine_has(package: str) -> None:
    allowed = BARE | {"engine", "kernels"} | set(sys.stdlib_module_names)
    strangers = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in imports_of(path)
        if name not in allowed | EXTRAS.get(str(path.relative_to(ROOT)), set())
    ]
    assert strangers == []


@pytest.mark.parametrize("module", ["engine/scheduler.py", "engine/blocks.py"])
def test_scheduling_knows_no_tensors(module: str) -> None:
    assert [name for name, _ in imports_of(ROOT / module) if name in TENSORS] == []


def test_the_check_sees_an_import_inside_a_function(tmp_path: Path) -> None:
    source = tmp_path / "late.py"
    source.write_text("def f():\n    from celery.app import task\n")
    assert list(imports_of(source)) == [("celery", 2)]
