"""The whole stack as a user starts it: `tokenmill up` in processes of its own, with the demo model or another one.

These are forked from loaded ones, but for tests that kill or measure processes; tests/cli/test_stack.py and
test_readme.py start everything anew, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import openai
import psutil
import psycopg
import pytest

from cli.embedded.sockets import free_port
from tests.database_roles import as_superuser
from tests.e2e.builders import Customer
from tests.forked.commands import program_of

ROOT = Path(__file__).resolve().parents[2]
DEMO_MODEL = ROOT / "examples" / "demo_model"
START_SECONDS = 180
STOP_SECONDS = 90

_DEMO = ("--model", str(DEMO_MODEL), "--served-name", "demo")
_EXPORT = re.compile(r"export TOKENMILL_BASE_URL=(\S+) TOKENMILL_API_KEY=(\S+)")


@dataclass
class Stack:
    """A running `tokenmill up`. `settings` are TOKENMILL_* variables without their prefix."""

    data_dir: Path
    commands: Path
    """The folder of the `python` and `tokenmill` that this starts and `run` calls."""
    settings: dict[str, str] = field(default_factory=dict)
    model: tuple[str, ...] = _DEMO
    base_url: str = ""
    api_key: str = ""
    process: subprocess.Popen[str] | None = None
    export: str = ""
    """The line that a user would paste into a shell."""

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            **{f"TOKENMILL_{name}": value for name, value in self.settings.items()},
            "TOKENMILL_BASE_URL": self.base_url,
            "TOKENMILL_API_KEY": self.api_key,
        }

    def start(self) -> None:
        """Start and wait for the line that a user would paste into a shell."""
        command = ["up", "--show-key", "--data-dir", str(self.data_dir), *self.model]
        self.start_as(command, {name: value for name, value in self.environment.items() if value})

    def start_as(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start with a command; its port is a free one, since other stacks run here."""
        typed = [str(self.commands / "python"), "-m", "cli.main", *command, "--port", str(free_port())]
        self.process = subprocess.Popen(typed, stdout=subprocess.PIPE, text=True, env=dict(environment), cwd=ROOT)
        assert self.process.stdout is not None
        self.export = self.process.stdout.readline()  # bounded by a timeout: the process ends when it fails
        found = _EXPORT.match(self.export)
        assert found, f"up printed {self.export!r}; logs: {self.logs()}"
        self.base_url, self.api_key = found.groups()

    def of_tenant(self, name: str) -> Stack:
        """Return the same stack for a new tenant."""
        key = ""
        for command in (("tenants", "create", name), ("keys", "create", name)):
            done = self.run(*command, "--data-dir", str(self.data_dir))
            assert done.returncode == 0, done.stderr
            key = done.stdout.strip()
        return replace(self, api_key=key, export=self.export.replace(self.api_key, key))

    def stop(self) -> int:
        assert self.process is not None
        with self.process:  # closes its pipe
            self.process.send_signal(signal.SIGINT)
            return self.process.wait(STOP_SECONDS)

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base_url, api_key=self.api_key)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a `tokenmill` command against this stack."""
        return subprocess.run(
            [self.commands / "tokenmill", *arguments],
            capture_output=True, text=True, env=self.environment, cwd=ROOT, check=False,
        )  # fmt: skip

    def audit(self) -> subprocess.CompletedProcess[str]:
        return self.run("audit", "--data-dir", str(self.data_dir))

    def database_url(self) -> str:
        return (self.data_dir / "run" / "database_url").read_text().strip()

    def query(self, sql: str) -> list[tuple[object, ...]]:
        with psycopg.connect(as_superuser(self.database_url()), autocommit=True) as connection:
            return connection.execute(sql).fetchall()

    def role(self, name: str) -> psutil.Process | None:
        """Return the process of a role, or of `valkey-server`, if it runs."""
        assert self.process is not None
        for child in psutil.Process(program_of(self.process.pid)).children(recursive=True):
            try:
                command = child.cmdline()
                if ("cli.main" in command and name in command) or child.name() == name:
                    return psutil.Process(program_of(child.pid))
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
        return None

    def logs(self) -> str:
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted((self.data_dir / "logs").glob("*.log"))
        )


@pytest.fixture(scope="module")
def stack_settings() -> dict[str, str]:
    """Overridden by a module that needs other settings."""
    return {}


@pytest.fixture(scope="module")
def stack_model() -> tuple[str, ...]:
    """Model arguments of `tokenmill up`; overridden by a module that needs another model than the demo's."""
    return _DEMO


@pytest.fixture(scope="module")
def stack_commands(quick_commands: Path) -> Path:
    """The folder of `python` and `tokenmill`; `builders.REAL_COMMANDS` for tests that kill or measure processes."""
    return quick_commands


@pytest.fixture(scope="module")
def stack(
    memory_folder: Path, stack_commands: Path, stack_settings: dict[str, str], stack_model: tuple[str, ...]
) -> Iterator[Stack]:
    stack = Stack(memory_folder, stack_commands, stack_settings, stack_model)
    try:
        stack.start()
        yield stack
    finally:
        if stack.process is not None and stack.process.poll() is None:
            stack.stop()


@pytest.fixture(scope="session")
def shared_stack(session_folder: Path, quick_commands: Path) -> Iterator[Stack]:
    """The stack of `tokenmill up` without arguments, for tests that only need one, each with its own tenant.

    Tests that kill parts of it, or read the data of all tenants, start another.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    stack = Stack(session_folder / "tokenmill", quick_commands)
    try:
        stack.start_as(["up"], clean | {"XDG_DATA_HOME": str(session_folder)})
        yield stack
    finally:
        if stack.process is not None and stack.process.poll() is None:
            stack.stop()


@pytest.fixture
def customer(stack: Stack) -> Customer:
    """The stack's own tenant."""
    return Customer(id="default", client=stack.client(), stack=stack)
