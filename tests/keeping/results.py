"""Results that are kept between runs: a passed comparison is not computed again while nothing that it uses has changed.

A module marked `comparison` has a digest of everything it depends on, under which the names of its passed tests are
stored. A test is not kept if it failed, was skipped, read a file of ours that is not in the digest, or saw one of its
files change. Modules below the folders of `COMPUTING` need no mark, unless they import what is for processes, threads
or time; an unmarked test that starts a process or opens a socket is not kept. `--all` runs everything.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.keeping.closure import Tree
from tests.keeping.digest import Digests, stamp_of, store_folder, surroundings

KEPT = "kept"
_DIGEST = "kept under"
_DAYS = 30
_DIGESTS = re.compile("[0-9a-f]{64}")
_HARMLESS = {"memory_folder", "request"}
COMPUTING = ("engine", "kernels")
"""Folders below the tests whose tests are computations but for those that are seen to be more."""
_NOT_ALONE = re.compile(
    r"^\s*(?:import|from) (?:asyncio|multiprocessing|signal|socket|subprocess|threading|time)\b", re.MULTILINE
)
_STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.__new__"}
"""Audit events of tests whose result depends on other processes."""


@dataclass(frozen=True)
class Module:
    """A module of comparisons as it was when the tests were collected."""

    files: frozenset[Path]
    digest: str
    stamp: Any
    passed: frozenset[str]
    """Names of tests that have a result."""


class Store:
    """A folder with a file for each digest, whose lines are the names of tests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, digest: str) -> frozenset[str]:
        path = self._folder / digest
        if not path.exists():
            return frozenset()
        path.touch()
        return frozenset(path.read_text(encoding="utf-8").splitlines())

    def add(self, digest: str, name: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / digest).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    def drop_old(self) -> None:
        """Remove results that were not used in a month."""
        before = time.time() - _DAYS * 86_400
        for path in self._folder.glob("*"):
            with suppress(FileNotFoundError):  # another session may drop it, too
                if _DIGESTS.fullmatch(path.name) and path.stat().st_mtime < before:
                    path.unlink()


_LISTENING: set[Reads] = set()


@cache
def _listen() -> None:
    """Report what this process opens and starts from now on; this cannot be undone."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if not _LISTENING:
            return
        if event == "open" and isinstance(arguments[0], str | bytes):
            for one in _LISTENING:
                one.add(os.path.abspath(os.fsdecode(arguments[0])))
        elif event in _STARTS:
            for one in _LISTENING:
                one.is_alone = False

    sys.addaudithook(hear)


class Reads:
    """Records the files below a root that are opened while a comparison runs; a compiled file counts as its source.

    Also notes whether a test started no process and opened no socket.
    """

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/"
        self.paths: set[Path] = set()
        self.is_alone = True
        _listen()

    def start(self) -> None:
        self.paths.clear()
        self.is_alone = True
        _LISTENING.add(self)

    def stop(self) -> bool:
        """Return whether it had been started."""
        was_on = self in _LISTENING
        _LISTENING.discard(self)
        return was_on

    def add(self, path: str) -> None:
        if path.startswith(self._root):
            self.paths.add(Path(path))

    def sources(self) -> Iterator[Path]:
        yield from (source for path in self.paths if (source := _source_of(path.relative_to(self._root))) is not None)


def _source_of(path: Path) -> Path | None:
    """Return the source file, or None if the opened file was written by a program, as in a cache."""
    if path.parts[0].startswith("."):
        return None
    if path.suffix == ".pyc":
        return path.parents[1] / f"{path.name.partition('.')[0]}.py"
    return None if "__pycache__" in path.parts else path


@dataclass(eq=False)
class KeptResults:
    """The pytest plugin that skips comparisons with a kept result, and keeps the results of others."""

    root: Path
    runs_all: bool
    options: str
    """Options of pytest that may affect a result."""
    is_worker: bool
    tests: str = "tests"
    """The folder whose conftest has servers for the whole suite: a test that requests one depends on everything."""
    store: Store = field(default_factory=lambda: Store(store_folder()))
    num_kept: int = 0
    _modules: dict[Path, Module] = field(default_factory=dict)
    _computing: dict[Path, bool] = field(default_factory=dict)
    _hang_on_more: set[Path] = field(default_factory=set)
    """Modules with a test that used more than its digest: a later one may use what it read or started by a fixture."""
    _outcomes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _reads: Reads | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        marked = {item.path for item in items if self._is_comparison(item)}
        if not marked:
            return
        tree, everything = Tree(self.root), self.root / self.tests / "conftest.py"
        digests = Digests(self.root, surroundings(), self.options)
        for path in marked:
            starts = [path, *self._conftests(path)]
            closures = [tree.closure(start, unfollowed=frozenset({everything})) for start in starts]
            files = frozenset(chain(*closures, [self.root / "pyproject.toml"]))
            digest = digests.of(files)
            self._modules[path] = Module(
                files=files, digest=digest, stamp=stamp_of(files), passed=self.store.read(digest)
            )
        self._reads = Reads(self.root)

    def _conftests(self, path: Path) -> Iterator[Path]:
        yield from (folder / "conftest.py" for folder in path.parents if (folder / "conftest.py").is_file())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        module = self._module_of(item)
        if module is None or self._reads is None:
            return
        if name_of(item) in module.passed and not self.runs_all:
            item.user_properties.append((KEPT, True))
            pytest.skip(KEPT)
        self._reads.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self._note_digest(item)

    def _note_digest(self, item: pytest.Item) -> None:
        """Add the digest under which a result may be kept to the report, if it may."""
        module = self._module_of(item)
        if module is None or self._reads is None or not self._reads.stop():
            return
        does_more = not self._reads.is_alone and not _is_marked(item)
        if does_more or not {self.root / path for path in self._reads.sources()} <= module.files:
            self._hang_on_more.add(item.path)
        if item.path not in self._hang_on_more and stamp_of(module.files) == module.stamp:
            item.user_properties.append((_DIGEST, [module.digest, name_of(item)]))

    def _module_of(self, item: pytest.Item) -> Module | None:
        return self._modules.get(item.path) if self._is_comparison(item) else None

    def _is_comparison(self, item: pytest.Item) -> bool:
        """Return whether a test's result may be kept: it is a computation, and uses no server of the whole suite."""
        is_computation = _is_marked(item) or self._computes(item.path)
        return is_computation and fixtures_of(item, self.tests) <= _HARMLESS

    def _computes(self, path: Path) -> bool:
        if path not in self._computing:
            is_below = any(path.is_relative_to(self.root / self.tests / folder) for folder in COMPUTING)
            self._computing[path] = is_below and _NOT_ALONE.search(path.read_text(encoding="utf-8")) is None
        return self._computing[path]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.is_worker:
            return
        told: dict[str, Any] = dict(report.user_properties)
        self.num_kept += KEPT in told and report.when == "setup"
        self._outcomes[report.nodeid].add(report.outcome)
        if report.when == "teardown" and self._outcomes.pop(report.nodeid) == {"passed"} and _DIGEST in told:
            self.store.add(*told[_DIGEST])

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        return (KEPT, "k", "KEPT") if report.skipped and KEPT in dict(getattr(report, "user_properties", ())) else None

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.num_kept:
            terminalreporter.write_line(
                f"{self.num_kept} comparisons kept, since nothing they use changed; --all runs them"
            )

    def pytest_sessionfinish(self) -> None:
        if not self.is_worker:
            self.store.drop_old()


def _is_marked(item: pytest.Item) -> bool:
    return item.get_closest_marker("comparison") is not None


def name_of(item: pytest.Item) -> str:
    """Return the name of a test in its module."""
    return item.nodeid.partition("::")[2]


def fixtures_of(item: pytest.Item, folder: str) -> set[str]:
    """Return the fixtures of a test that are defined in a folder's own conftest."""
    found = item._fixtureinfo.name2fixturedefs.items()  # type: ignore[attr-defined]
    return {name for name, defined in found if any(one.baseid == folder for one in defined)}


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run comparisons too whose result of an earlier run is kept")


def kept_results(config: pytest.Config, *, tests: str = "tests") -> KeptResults:
    told = [config.getoption(name) for name in ("pythonwarnings", "override_ini", "assertmode")]
    return KeptResults(
        root=config.rootpath,
        runs_all=bool(config.getoption("--all")),
        options=repr(told),
        is_worker=hasattr(config, "workerinput"),
        tests=tests,
    )
