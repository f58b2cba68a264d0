"""Tests of deploy/trim-packages on hard links of installed packages: what is left still loads, and works."""

from __future__ import annotations

import shutil
import subprocess
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.deploy.image_packages import ROOT

TRIMMED = ("numpy", "numpy.libs", "pyarrow", "sqlalchemy", "typing_extensions.py")
"""What the script trims, and what that needs."""
PROGRAM = """
import io, numpy, pyarrow, pyarrow.parquet, sqlalchemy.orm, sqlalchemy.dialects.postgresql
file = io.BytesIO()
pyarrow.parquet.write_table(pyarrow.table({"number": numpy.arange(3)}), file)
print(pyarrow.parquet.read_table(file)["number"].to_pylist(), pyarrow.__file__)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the Python of an environment with hard links of these packages; a link's deletion leaves the file."""
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3.*/site-packages")
    for name in TRIMMED:
        source = _installed(name)
        if source.is_dir():
            shutil.copytree(source, packages / name, copy_function=_link)
        else:
            _link(str(source), str(packages / name))
    return tmp_path / "venv" / "bin" / "python"


def _installed(name: str) -> Path:
    spec = find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1] / name


def _link(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except OSError:  # the temporary folder is on another disk
        shutil.copy(source, target)


def test_packages_work_without_what_is_removed(python: Path) -> None:
    """Without Substrait, which pyarrow links, no role could read or write a Parquet file."""
    packages = python.parents[1]
    before = _size(packages)
    subprocess.run(["bash", ROOT / "deploy" / "trim-packages", python], check=True)
    assert _size(packages) < 0.7 * before
    done = subprocess.run([python, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"[0, 1, 2] {packages}")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
