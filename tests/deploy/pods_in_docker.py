"""Pods of the chart as containers of a Docker daemon: same image, command, variables, mounts, user and rights."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.deploy.chart import Object, container_of

ROOT = Path(__file__).resolve().parents[2]
SOCKET = Path(os.environ.get("CONTAINERS", ROOT / ".containers")) / "sock"
"""Of the daemon that scripts/containers starts."""


def docker(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Debian's client, which comes first on the path."""
    environment = {**os.environ, "DOCKER_HOST": f"unix://{SOCKET}", "PATH": f"/usr/bin:{os.environ['PATH']}"}
    return subprocess.run(
        ["docker", *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def called(*arguments: str) -> str:
    """Run a command of Docker, which must succeed; return what it printed."""
    done = docker(*arguments)
    assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What is outside of a release: a network, the values of Secrets by key, and volumes as folders of the host."""

    network: str
    secrets: Mapping[str, str]
    claims: Mapping[str, Path]
    empty: Path
    """Where pods get their empty volumes, each in a folder of its name."""
    started: list[str] = field(default_factory=list)

    def run(self, name: str, *arguments: str) -> str:
        """Start a container with these arguments and return its id."""
        full = f"{self.network}-{name}"
        self.started.append(full)
        return called("run", "--detach", "--name", full, "--network", self.network, "--network-alias", name, *arguments)

    def run_pod(self, name: str, pod: Object) -> str:
        """Start the container of a pod, after those that prepare it."""
        volumes = dict(self._volumes(name, pod["spec"]))
        for each in pod["spec"].get("initContainers", []):
            called("run", "--rm", *arguments_of(pod["spec"], each, volumes, self.secrets))
        return self.run(name, *arguments_of(pod["spec"], container_of(pod), volumes, self.secrets))

    def _volumes(self, pod: str, spec: Object) -> Iterator[tuple[str, Path]]:
        for each in spec["volumes"]:
            if "emptyDir" in each:
                folder = self.empty / pod / each["name"]
                folder.mkdir(parents=True)
                folder.chmod(0o777)
                yield each["name"], folder
            else:
                yield each["name"], self.claims[each["persistentVolumeClaim"]["claimName"]]

    def remove(self) -> None:
        if self.started:
            docker("rm", "--force", "--volumes", *self.started)
        docker("network", "rm", self.network)


def arguments_of(spec: Object, container: Object, volumes: Mapping[str, Path], secrets: Mapping[str, str]) -> list[str]:
    """Return the arguments of `docker run` for a container of a pod's specification."""
    context = spec["securityContext"] | container["securityContext"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}, "Docker's own"
    words = [*container.get("command", []), *container.get("args", [])]
    return [
        *(["--init"] if spec["shareProcessNamespace"] else []),
        *(["--read-only"] if context["readOnlyRootFilesystem"] else []),
        *([] if context["allowPrivilegeEscalation"] else ["--security-opt", "no-new-privileges:true"]),
        *(part for name in context["capabilities"]["drop"] for part in ("--cap-drop", name)),
        *("--user", f"{context['runAsUser']}:{context['runAsGroup']}", "--group-add", str(context["fsGroup"])),
        *_variables(container, secrets),
        *_mounts(container, volumes),
        *(["--entrypoint", words.pop(0)] if "command" in container else []),
        "tokenmill:" + container["image"].partition(":")[2].partition("-")[2],
        *words,
    ]


def _variables(container: Object, secrets: Mapping[str, str]) -> Iterator[str]:
    for each in container.get("env", []):
        key = each.get("valueFrom", {}).get("secretKeyRef", {}).get("key")
        yield from ("--env", f"{each['name']}={each['value'] if key is None else secrets[key]}")


def _mounts(container: Object, volumes: Mapping[str, Path]) -> Iterator[str]:
    for each in container["volumeMounts"]:
        source = volumes[each["name"]] / each.get("subPath", "")
        yield from ("--volume", f"{source}:{each['mountPath']}{':ro' if each.get('readOnly') else ''}")


def answers_probe(container_id: str, container: Object, kind: str) -> bool:
    """Ask what a probe asks, from where the kubelet asks it."""
    probe = container[kind]
    if "exec" in probe:
        return docker("exec", container_id, *probe["exec"]["command"]).returncode == 0
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == probe["httpGet"]["port"]]
    networks = json.loads(called("inspect", "--format", "{{json .NetworkSettings.Networks}}", container_id))
    (address,) = [each["IPAddress"] for each in networks.values()]
    try:
        return httpx.get(f"http://{address}:{port}{probe['httpGet']['path']}", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def exit_code(container_id: str) -> int:
    """Wait until a container has ended, and return its status."""
    return int(called("wait", container_id))


def until(holds: Callable[[], bool], explain: Callable[[], str], *, seconds: float) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {explain()}"
        time.sleep(0.5)
