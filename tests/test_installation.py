"""Tests of the installed wheel: one name in the environment, and every process of ours finds our packages.

All run in a folder with packages of the same names, which is first on PYTHONPATH. The checkout is on no path.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from jobs.database import head_revision

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parent.parent
WHEEL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
INSIDE = [*WHEEL["sources"]]
USERS_OWN = """
import sys
if not hasattr(sys, "has_packages_of_these_names"):
    raise ImportError("this is a package of the user's")
"""
STAND_IN = f"""
import sys
from types import ModuleType
sys.modules["lab"] = ModuleType("lab")
sys.modules["lab"].__path__ = [{str(ROOT / "lab")!r}]
from lab.no_compute.engine import EchoEngine as build_engine
"""
"""An engine that computes nothing: compiling kernels would take a minute. Its process is the real one."""
SITE_CUSTOMIZE = """
import sys
from importlib.util import spec_from_file_location
class Finder:
    def find_spec(name, path, target=None):
        return spec_from_file_location(name, __file__.replace(".py", "_engine.py")) if name == "engine.build" else None
if "engine.process.child" in sys.orig_argv:
    sys.meta_path.insert(0, Finder)
"""
"""Imported by Python at startup: replaces what the engine's process loads."""
NO_COMPUTE = {"NO_COMPUTE_STEP_SECONDS": "0", "NO_COMPUTE_TOKENS_A_STEP": "1000", "NO_COMPUTE_SEATS": "8"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """A virtual environment with the wheel, and a project with packages that have our names."""

    python: Path
    project: Path

    @property
    def site_packages(self) -> Path:
        (found,) = self.python.parent.parent.glob("lib/python*/site-packages")
        return found

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project; `tokenmill` is the installed one."""
        program, *arguments = command
        own = {name: value for name, value in os.environ.items() if not name.startswith(("TOKENMILL_", "PYTHON"))}
        return subprocess.run(
            [self.python.with_name(str(program)), *arguments],
            cwd=self.project,
            env={**own, "PYTHONPATH": str(self.project), **variables},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    def run_script(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python code after loading all of the project's packages."""
        path = self.project / "script.py"
        path.write_text(f"import sys\nsys.has_packages_of_these_names = True\nimport {', '.join(INSIDE)}\n{script}")
        return self.run("python", path, **variables)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("installation")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    made = Installation(python=folder / "venv" / "bin" / "python", project=folder / "project")
    install: list[str | Path] = [
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-compile",
        "--disable-pip-version-check",
        wheel,
    ]
    subprocess.run([sys.executable, "-m", "pip", "--python", made.python, *install], check=True)
    # A line in a .pth file: .pth files in the added folder are not processed, so the checkout stays off the path.
    (made.site_packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for name in (*INSIDE, "lab"):
        (made.project / name).mkdir(parents=True)
        (made.project / name / "__init__.py").write_text(USERS_OWN)
    (made.project / "sitecustomize.py").write_text(SITE_CUSTOMIZE)
    (made.project / "sitecustomize_engine.py").write_text(STAND_IN)
    return made


def test_a_wheel_puts_one_name_into_an_environment(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"tokenmill"}


def test_a_wheel_has_all_files_of_every_package_and_no_studies(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(["git", "ls-files", *INSIDE], cwd=ROOT, capture_output=True, text=True, check=True)
    missing = [path for path in tracked.stdout.split() if f"tokenmill/_packages/{path}" not in names]
    assert missing == WHEEL["exclude"][0].removeprefix("/").split()


def test_the_command_begins_where_other_packages_have_our_names(installation: Installation) -> None:
    helped = installation.run("tokenmill", "--help")
    assert (helped.returncode, "Usage: tokenmill" in helped.stdout) == (0, True), helped.stderr
    assert installation.run("python", "-m", "tokenmill", "--version").stdout.startswith("tokenmill ")


def test_a_study_is_refused_in_a_sentence(installation: Installation) -> None:
    refused = installation.run("tokenmill", "bench", "chaos", "--seed", "1")
    assert (refused.returncode, refused.stdout, refused.stderr.count("\n")) == (2, "", 1)


def test_a_measurement_of_an_installation_lacks_no_module(wheel: Path) -> None:
    inside = "tokenmill/_packages/"
    names = {name.removeprefix(inside) for name in zipfile.ZipFile(wheel).namelist()}
    imported = {
        module
        for name in names
        if name.startswith("benchmarks/") and name.endswith(".py")
        for module in re.findall(r"^ *from (benchmarks[\w.]*) import", (ROOT / name).read_text(), flags=re.MULTILINE)
    }
    files = {module.replace(".", "/") for module in imported}
    assert {path for path in files if not {f"{path}.py", f"{path}/__init__.py"} & names} == set()
    assert len(files) > 5


def test_alembic_makes_the_schema(installation: Installation, empty_database: str) -> None:
    upgraded = installation.run("tokenmill", "db", "upgrade", TOKENMILL_DATABASE_URL=empty_database)
    assert upgraded.returncode == 0, upgraded.stderr
    with psycopg.connect(empty_database) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == (head_revision(),)


OURS = """
import sys
from tokenmill.processes import command_of, put_our_packages_first
put_our_packages_first()
"""
CELERY = """
from workers.app import make_app
print(make_app("redis://127.0.0.1:9/0").main)
"""
CONFINED = """
from confined.probe import missing_layers
print(type(missing_layers()).__name__)
"""
ENGINE = f"""
from engine.config import EngineConfig
from engine.process.parent import EngineProcess
engine = EngineProcess(EngineConfig(model={str(ROOT / "examples" / "demo_model")!r}, device="cpu"))
engine.start()
print(engine.info.dtype)
engine.close()
"""
BODIES = """
import asyncio
from api.parsing.parser import BodyParser
from features.administration.http.tenants import CreateTenantBody
parser = BodyParser(most_seconds=120)
print(asyncio.run(parser.parsed(CreateTenantBody, b'{"name": "acme"}', "application/json")).name)
parser.close()
"""


@pytest.mark.parametrize(
    ("script", "printed"), [(CELERY, "tokenmill"), (CONFINED, "frozenset"), (ENGINE, "none"), (BODIES, "acme")]
)
def test_what_our_processes_start_finds_our_packages(installation: Installation, script: str, printed: str) -> None:
    path = installation.project / "ours.py"
    path.write_text(OURS + script)
    started = installation.run("python", path, **NO_COMPUTE)
    assert (started.returncode, started.stdout.split()) == (0, [printed]), started.stderr


def test_a_table_goes_through_a_whole_stack_from_a_users_process(
    installation: Installation, memory_folder: Path
) -> None:
    """Its rows are rendered in a confined process; alembic, uvicorn, Celery and the engine's process start for them."""
    script = f"""
    import json, tokenmill
    rows = tokenmill.map([{{"text": "good"}}, {{"text": {{1}}}}], prompt="{{{{ text }}}}",
        model={str(ROOT / "examples" / "demo_model")!r})
    ours = [name for name, module in sys.modules.items() if "_packages" in (getattr(module, "__file__", None) or "")]
    print(json.dumps([rows[0]["answer"], rows[1]["answer"], rows[1]["error"], rows[0]["error"], ours]))
    """
    mapped = installation.run_script(textwrap.dedent(script), TOKENMILL_DATA_DIR=str(memory_folder), **NO_COMPUTE)
    assert mapped.returncode == 0, mapped.stderr
    answer, none, error, no_error, ours = json.loads(mapped.stdout)
    assert "good" in answer
    assert (none, no_error, ours) == (None, None, [])
    assert "a value of type set" in error


def test_engine_and_documents_are_imported_beside_packages_of_other_names_alone(installation: Installation) -> None:
    script = """
    for name in ("confined", "engine", "features", "kernels", "protocol"):
        del sys.modules[name]
    sys.path.remove(os.path.dirname(__file__))
    sys.path.remove(os.environ["PYTHONPATH"])
    """
    imported = """
    import jobs
    from tokenmill.engine import SamplingParams
    from engine.params import SamplingParams as ours
    from tokenmill.documents import DocumentReader
    with DocumentReader() as reader:
        text = reader.read(b"one page", "a.txt").text
    print(SamplingParams is ours, text, hasattr(jobs, "errors"))
    """
    refused = installation.run_script(textwrap.dedent(imported))
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].startswith("ImportError: ")
    assert str(installation.project / "engine") in refused.stderr
    got = installation.run_script("import os" + textwrap.dedent(script) + textwrap.dedent(imported))
    assert got.stdout == "True one page False\n", got.stderr
