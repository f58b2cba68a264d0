"""A stack of docker-compose.yml in containers, in a folder as a user has it: the file, `.env` and what they name."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import openai

ROOT = Path(__file__).resolve().parents[3]
CONTAINERS = Path(os.environ.get("CONTAINERS", ROOT / ".containers"))
"""What scripts/containers has prepared."""
SOCKET = CONTAINERS / "sock"
BEFORE = CONTAINERS / "before.yml"
"""docker-compose.yml of a release before, where that has an image."""
COMPOSE_1 = "docker-compose"
COMPOSE_2 = str(CONTAINERS / "compose" / "compose" / "docker-compose")
PASSWORDS = ("POSTGRES_PASSWORD", "POSTGRES_SERVICE_PASSWORD", "POSTGRES_PREPARE_PASSWORD", "REDIS_PASSWORD")
ROLES = ("api", "control", "dispatch", "prepare", "worker-cpu")
WAIT_SECONDS = 180


@dataclass(kw_only=True)
class Composed:
    """A project of docker-compose in a folder: `file`, and a `.env` with `settings` as further lines."""

    folder: Path
    port: int
    settings: dict[str, str] = field(default_factory=dict)
    file: Path = ROOT / "docker-compose.yml"
    compose: str = COMPOSE_1
    api_key: str = ""

    def lay_out(self) -> None:
        """Write `.env` and link what docker-compose.yml names."""
        self.folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.file, self.folder / "docker-compose.yml")
        for name in ("examples", "deploy"):
            (self.folder / name).symlink_to(ROOT / name)
        own = {name: secrets.token_hex(24) for name in PASSWORDS} | {"TOKENMILL_PORT": str(self.port)}
        lines = [f"{name}={value}\n" for name, value in (own | self.settings).items()]
        (self.folder / ".env").write_text("".join(lines))

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @cached_property
    def environment(self) -> dict[str, str]:
        """Debian's client comes first on the path, and one project's containers are named after its folder."""
        return {**os.environ, "DOCKER_HOST": f"unix://{SOCKET}", "PATH": f"/usr/bin:{os.environ['PATH']}"}

    def run(self, *command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def call(self, *arguments: str, timeout: float = 300) -> str:
        """Call docker-compose, which must succeed; return what it printed."""
        done = self.run(self.compose, *arguments, timeout=timeout)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def up(self, *arguments: str) -> None:
        self.call("up", "--detach", "--no-build", *arguments)
        self.until_ready()

    def until_ready(self) -> None:
        until(lambda: self.readiness().get("status_code") == 200, self)

    def readiness(self) -> dict[str, Any]:
        """Return the fields of /readyz and the code; nothing while no API answers."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=10)
        except httpx.HTTPError:
            return {}
        return {"status_code": answer.status_code, **answer.json()}

    def execute(self, service: str, *command: str) -> str:
        """Run a command in a service's container. `docker-compose exec` may hang after its end on a busy machine."""
        done = self.run("docker", "exec", self.ids(service)[0], *command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def add_tenant(self, name: str) -> None:
        self.execute("api", "tokenmill", "tenants", "create", name)
        self.api_key = self.execute("api", "tokenmill", "keys", "create", name).strip()

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.base_url, api_key=self.api_key)

    def num_done(self, batch_id: str) -> int:
        counts = self.client().batches.retrieve(batch_id).request_counts
        return counts.completed if counts is not None else 0

    def tokenmill(self, *arguments: str) -> str:
        """Call a client's command of this environment against the stack."""
        own = {"TOKENMILL_BASE_URL": self.base_url, "TOKENMILL_API_KEY": self.api_key}
        command = [str(ROOT / ".venv" / "bin" / "tokenmill"), *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ids(self, service: str) -> list[str]:
        return self.call("ps", "-q", service).split()

    def inspect(self, container: str, template: str) -> str:
        return self.run("docker", "inspect", "--format", template, container).stdout.strip()

    def exit_codes(self, service: str) -> set[str]:
        ids = self.run("docker", "ps", "-aq", "--filter", f"label=com.docker.compose.service={service}",
                       "--filter", f"label=com.docker.compose.project={self.folder.name}").stdout.split()  # fmt: skip
        return {self.inspect(each, "{{.State.ExitCode}}") for each in ids}

    def stop(self, *services: str) -> None:
        """Stop containers by Docker's client, together: docker-compose may hang on a busy machine."""
        ids = [each for service in services for each in self.ids(service)]
        done = self.run("docker", "stop", "--time", "60", *ids)
        assert done.returncode == 0, done.stderr

    def kill(self, service: str) -> None:
        """Kill the first process of a service's containers from the host, as a fault would: Docker restarts them."""
        for each in self.ids(service):
            os.kill(int(self.inspect(each, "{{.State.Pid}}")), 9)

    def query(self, sql: str) -> list[tuple[str, ...]]:
        """Run SQL as the database's superuser."""
        printed = self.execute("postgres", "psql", "-U", "tokenmill", "-d", "tokenmill", "-AtF", "\t", "-c", sql)
        return [tuple(line.split("\t")) for line in printed.splitlines()]

    def logs(self) -> str:
        """Return the last lines of each container."""
        named = f"label=com.docker.compose.project={self.folder.name}"
        ids = self.run("docker", "ps", "-aq", "--filter", named).stdout.split()
        ends = {self.inspect(each, "{{.Name}}"): self.run("docker", "logs", "--tail", "30", each) for each in ids}
        return "\n".join(f"{name}: {done.stdout}{done.stderr}" for name, done in ends.items())

    def audit(self) -> str:
        return self.execute("api", "tokenmill", "audit").strip()


def until(holds: Callable[[], Any], stack: Composed, *, seconds: float = WAIT_SECONDS) -> Any:
    """Wait until a condition holds, and return its value."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {stack.logs()}"
        time.sleep(0.2)
    return found
