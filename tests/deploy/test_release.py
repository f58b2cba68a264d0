"""Tests of scripts/release on a clone: files of one version, the same bytes for the same commit, and clear refusals."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.image_packages import ROOT

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not only its files")

PERSON = ("-c", "user.name=t", "-c", "user.email=t@example.org")


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", folder, *PERSON, *arguments], check=True, capture_output=True, text=True)
    return done.stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the script as it is here."""
    folder = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--shared", str(ROOT), str(folder))
    for name in ("scripts/release", "deploy/list-contents"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    if git(folder, "status", "--porcelain"):
        git(folder, "commit", "--quiet", "--all", "--message", "scripts")
    return folder


def release(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable}
    command = ["bash", "scripts/release", *arguments]
    return subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)


def test_a_release_has_one_version_and_sums_and_is_the_same_again(clone: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        done = release(clone, str(folder))
        assert done.returncode == 0, done.stderr
    sums = (folders[0] / "SHA256SUMS").read_text()
    assert sums == (folders[1] / "SHA256SUMS").read_text()
    listed = {line.split("  ")[1]: line.split("  ")[0] for line in sums.splitlines()}
    files = [path for path in folders[0].iterdir() if path.name != "SHA256SUMS"]
    assert listed == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (version,) = {_version_of_wheel(*folders[0].glob("*.whl")), _version_of_chart(*folders[0].glob("*.tgz"))}
    assert set(listed) == {f"tokenmill-{version}-py3-none-any.whl", f"tokenmill-{version}.tgz", "wheel.cdx.json"}
    names = {each["name"] for each in json.loads((folders[0] / "wheel.cdx.json").read_text())["components"]}
    assert {"tokenmill", "torch", "sqlalchemy", "fastapi", "celery", "pyarrow"} <= names
    assert not names & {"pytest", "mypy", "matplotlib"}


def _version_of_wheel(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode().splitlines()
    return next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))


def _version_of_chart(chart: Path) -> str:
    with tarfile.open(chart) as archive:
        found: Any = archive.extractfile("tokenmill/Chart.yaml")
        lines: list[str] = found.read().decode().splitlines()
    return next(line.removeprefix("version: ") for line in lines if line.startswith("version: "))


@pytest.mark.parametrize("wrong", ["chart", "changelog", "changed", "folder", "option"])
def test_what_is_no_release_is_refused(clone: Path, tmp_path: Path, wrong: str) -> None:
    arguments = [str(tmp_path / "out")]
    if wrong == "chart":
        _change(clone / "deploy" / "helm" / "tokenmill" / "Chart.yaml", "appVersion: ", "appVersion: 9")
    elif wrong == "changelog":
        _change(clone / "CHANGELOG.md", "\n## ", "\n### ")
    elif wrong == "folder":
        (tmp_path / "out").mkdir()
    elif wrong == "option":
        arguments.append("--image")
    if wrong in {"chart", "changelog"}:
        git(clone, "commit", "--quiet", "--all", "--message", "wrong")
    if wrong == "changed":
        (clone / "new.txt").touch()
    done = release(clone, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("release: ")
    assert wrong == "folder" or not (tmp_path / "out").exists()


def _change(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))
