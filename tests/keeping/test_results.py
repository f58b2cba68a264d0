"""Tests of results kept between runs of pytest: which are kept, and what causes each to be computed again."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.keeping.results import COMPUTING, Store

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "pyproject.toml": """
[tool.pytest.ini_options]
addopts = "--import-mode=importlib --strict-markers -p no:cacheprovider -p no:schemathesis -p no:hypothesispytest"
pythonpath = ["."]
markers = ["comparison: kept"]
""",
    "checks/conftest.py": """
import pytest
from tests.keeping.results import add_option, kept_results
def pytest_addoption(parser):
    add_option(parser)
def pytest_configure(config):
    config.pluginmanager.register(kept_results(config, tests="checks"))
@pytest.fixture
def server():
    return None
""",
    "checks/inner/conftest.py": "",
    "checks/inner/test_another.py": "",
    "ours/code.py": "def value(): return 1\n",
    "ours/data.json": "{}",
    "unnamed/read.txt": "",
    "unnamed/code.py": "",
    "checks/test_it.py": """
import pytest
from pathlib import Path
import ours.code
pytestmark = pytest.mark.comparison
def test_good():
    assert ours.code.value()
""",
}


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with tests, and pytest's reports on them."""

    pytester: pytest.Pytester

    def write(self, name: str, text: str) -> None:
        path = self.pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test(self, body: str) -> None:
        """Add a test to the module, or replace it."""
        self.write("checks/test_it.py", FILES["checks/test_it.py"] + body)

    def run(self, *options: str) -> Mapping[str, int]:
        """Run all tests; return the number of tests by outcome."""
        return self.pytester.runpytest_inprocess(*options, "checks").parseoutcomes()


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("TOKENMILL_KEPT_TESTS", str(pytester.path / "store"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may change twice in a second
    made = Project(pytester)
    for name, text in FILES.items():
        made.write(name, text)
    return made


def test_a_result_is_kept_and_computed_again_on_request(project: Project) -> None:
    assert project.run() == {"passed": 1}
    assert project.run() == {"kept": 1}
    assert project.run("--all") == {"passed": 1}


def test_a_module_that_is_skipped_as_a_whole_is_told(project: Project) -> None:
    project.write("checks/test_other.py", "import pytest\npytest.skip('not here', allow_module_level=True)\n")
    assert project.run("-v", "-rs") == {"passed": 1, "skipped": 1}


def test_workers_keep_results_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert project.run("-n", "1") == {"passed": 1}
    assert project.run() == {"kept": 1}
    project.write("ours/data.json", "[]")
    project.run()
    assert project.run("-n", "1") == {"kept": 1}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ours/code.py", "def value(): return 2\n"),
        ("ours/__init__.py", ""),
        ("ours/data.json", "[]"),
        ("checks/test_it.py", FILES["checks/test_it.py"] + "\n"),
        ("checks/conftest.py", FILES["checks/conftest.py"] + "\n"),
        ("pyproject.toml", FILES["pyproject.toml"] + "\n"),
    ],
)
def test_a_changed_file_has_it_computed_again(project: Project, name: str, text: str) -> None:
    project.run()
    before = FILES.get(name)
    project.write(name, text)
    assert project.run() == {"passed": 1}
    if before is not None:
        project.write(name, before)
        assert project.run() == {"kept": 1}


def test_a_changed_choice_or_option_has_it_computed_again(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.run()
    assert project.run("-W", "ignore") == {"passed": 1}
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert project.run() == {"passed": 1}


def test_a_conftest_on_the_way_to_a_module_is_part_of_it(project: Project) -> None:
    project.write("checks/inner/test_another.py", FILES["checks/test_it.py"])
    assert project.run() == {"passed": 2}
    project.write("checks/inner/conftest.py", "\n")
    assert project.run() == {"passed": 1, "kept": 1}


def test_a_defect_in_what_is_imported_fails_though_a_result_is_kept(project: Project) -> None:
    project.run()
    project.write("ours/code.py", "def value(): return 0\n")
    assert project.run() == {"failed": 1}
    assert project.run() == {"failed": 1}, "what failed is never kept"


@pytest.mark.parametrize(
    ("body", "outcome"),
    [
        ("def test_more(): assert False\n", "failed"),
        ("def test_more(): pytest.skip('no device')\n", "skipped"),
        ("@pytest.mark.xfail\ndef test_more(): assert False\n", "xfailed"),
        ("@pytest.fixture\ndef ends_badly():\n    yield\n    assert 0\ndef test_more(ends_badly): pass\n", "errors"),
    ],
)
def test_what_did_not_pass_is_not_kept(project: Project, body: str, outcome: str) -> None:
    project.test(body)
    assert project.run()[outcome] == 1
    again = project.run()
    assert (again["kept"], again[outcome]) == (1, 1)


@pytest.mark.parametrize(
    "body",
    [
        "def test_more(): Path('unnamed', 'read' + '.txt').read_text()\n",
        "import importlib\ndef test_more(): importlib.import_module('unnamed.' + 'code')\n",
        "def test_more(): Path('ours/code.py').touch()\n",
        "def test_more(server): pass\n",
    ],
    ids=[
        "read a file that the digest lacks",
        "loaded a module that it lacks",
        "a file changed meanwhile",
        "has a server of the whole suite's",
    ],
)
def test_what_hangs_on_more_than_its_digest_is_not_kept(project: Project, body: str) -> None:
    project.test(body)
    assert project.run() == {"passed": 2}
    assert project.run()["passed"] >= 1


def test_what_a_fixture_of_a_module_read_is_heard_for_all_that_use_it(project: Project) -> None:
    fixture = "@pytest.fixture(scope='module')\ndef read(): return Path('unnamed', 'read' + '.txt').read_text()\n"
    project.test(fixture + "def test_one(read): assert not read\ndef test_two(read): assert not read\n")
    assert project.run() == {"passed": 3}
    project.write("unnamed/read.txt", "changed")
    assert project.run()["failed"] == 2


UNMARKED = """
import os
import pytest
import ours.code
@pytest.fixture(scope="module")
def child():
    os.system("true")
def test_first():
    assert ours.code.value()
"""


@pytest.mark.parametrize(
    ("body", "num_kept"),
    [
        ("def test_more(): pass", 2),
        ("def test_more(child): pass\ndef test_last(child): pass", 1),
        ("from urllib.request import socket\ndef test_more(): socket.socket().close()", 1),
        ("def test_more(server): pass", 1),
        ("def test_more():\n    import threading", 0),
        ("from time import sleep\ndef test_more(): pass", 0),
    ],
)
@pytest.mark.parametrize("folder", COMPUTING)
def test_what_only_computes_is_kept_without_a_mark_in_folders_of_computations(
    folder: str, body: str, num_kept: int, project: Project
) -> None:
    project.write("checks/test_it.py", "")
    project.write(f"checks/{folder}/test_unmarked.py", UNMARKED + body)
    num_tests = project.run()["passed"]
    again = project.run()
    assert (again.get("kept", 0), again.get("passed", 0)) == (num_kept, num_tests - num_kept)
    project.write("ours/code.py", "def value(): return 0\n")
    assert project.run()["failed"] == 1


def test_a_test_that_is_not_marked_is_never_kept(project: Project) -> None:
    project.write("checks/test_it.py", FILES["checks/test_it.py"].replace("pytest.mark.comparison", "[]"))
    assert [project.run(), project.run()] == [{"passed": 1}, {"passed": 1}]


def test_results_that_nobody_asked_for_in_a_month_are_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path)
    old, new, other = "0" * 64, "1" * 64, tmp_path / "mine.txt"
    store.add(old, "test_a")
    store.add(new, "test_b")
    other.touch()
    for path in (tmp_path / old, other):
        os.utime(path, (0, 0))
    store.drop_old()
    assert not store.read(old)
    assert store.read(new) == {"test_b"}
    assert other.exists()
