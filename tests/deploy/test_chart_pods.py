"""Tests of the chart's pods in containers: each role starts with the rendered rights, is ready, and stops in time."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.chart import Object, component_of, container_of, objects, pod_of, values_of
from tests.deploy.pods_in_docker import ROOT, SOCKET, Cluster, answers_probe, called, docker, exit_code, until

pytestmark = [pytest.mark.containers, pytest.mark.timeout(2400)]

VALUES = values_of("minimal") | {"models": {"demo": {"claim": "models", "path": "demo_model"}}}
GROUP = 10001


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if docker("version").returncode != 0:
        pytest.skip(f"no Docker daemon answers at {SOCKET}; run scripts/containers")
    owner, service, prepare, broker = (secrets.token_hex(16) for _ in range(4))
    made = Cluster(
        network=f"chart-{secrets.token_hex(4)}",
        secrets={
            "TOKENMILL_DATABASE_URL": f"postgresql://tokenmill_service:{service}@postgres/tokenmill",
            "TOKENMILL_DATABASE_PREPARE_URL": f"postgresql://tokenmill_prepare:{prepare}@postgres/tokenmill",
            "TOKENMILL_DATABASE_OWNER_URL": f"postgresql://tokenmill:{owner}@postgres/tokenmill",
            "TOKENMILL_REDIS_URL": f"redis://:{broker}@redis:6379/0",
        },
        claims=claims_below(tmp_path_factory.mktemp("claims")),
        empty=tmp_path_factory.mktemp("empty"),
    )
    called("network", "create", made.network)
    try:
        variables = ("POSTGRES_USER=tokenmill", "POSTGRES_DB=tokenmill", f"POSTGRES_PASSWORD={owner}")
        settings = [part for each in variables for part in ("--env", each)]
        made.run("postgres", "--user", "postgres", *settings, "postgres:18-bookworm")
        made.run("redis", "--user", "valkey", "valkey/valkey:9-bookworm", "valkey-server", "--requirepass", broker)
        yield made
    finally:
        made.remove()


def claims_below(folder: Path) -> dict[str, Path]:
    """Return the claims as the kubelet gives them: of fsGroup, with what subPath names made by it."""
    objects_claim, models = folder / "objects", folder / "models"
    for path in (objects_claim, objects_claim / "prepared"):
        path.mkdir(parents=True)
        os.chown(path, 0, GROUP)
        path.chmod(0o2775)
    shutil.copytree(ROOT / "examples" / "demo_model", models / "demo_model")
    for path in folder.parents[0], folder, models:
        path.chmod(0o755)
    return {"tokenmill-objects": objects_claim, "models": models}


@pytest.fixture(scope="module")
def pods() -> dict[str, Object]:
    """Return the release's pods by the names of the Services and Deployments that they belong to."""
    made = [(f"tokenmill-{component_of(each)}", pod_of(each)) for each in objects(VALUES)]
    return {name: pod for name, pod in made if pod is not None}


def test_each_role_starts_with_the_rendered_rights_and_stops_within_its_grace(
    cluster: Cluster, pods: dict[str, Object]
) -> None:
    run_to_its_end(cluster, "tokenmill-migrate", pods)
    roles = {name: pod for name, pod in pods.items() if "livenessProbe" in container_of(pod)}
    assert len(roles) == 5
    running = {name: cluster.run_pod(name, pod) for name, pod in roles.items()}
    compiled = list((cluster.empty / "tokenmill-worker" / "cache").rglob("*.nbi"))
    assert compiled != [], "without the image's kernels each worker compiles them at its start"
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        for name, container_id in running.items():
            until_answered(kind, container_id, roles[name])
    run_to_its_end(cluster, "tokenmill-test", pods)
    for name, container_id in running.items():
        assert docker("exec", container_id, "touch", "/opt/tokenmill/x").returncode != 0, f"{name} writes its root"
        assert called("exec", container_id, "id", "-u") == str(GROUP)
        stop(container_id, grace=roles[name]["spec"]["terminationGracePeriodSeconds"])


def run_to_its_end(cluster: Cluster, name: str, pods: dict[str, Object]) -> None:
    container_id = cluster.run_pod(name, pods[name])
    assert exit_code(container_id) == 0, called("logs", container_id)


def until_answered(kind: str, container_id: str, pod: Object) -> None:
    """Wait for a probe, as long as the kubelet waits for the first one."""
    starts = container_of(pod)["startupProbe"]
    until(
        lambda: answers_probe(container_id, container_of(pod), kind),
        lambda: f"{kind}: {docker('logs', '--tail', '30', container_id)}",
        seconds=starts["periodSeconds"] * starts["failureThreshold"],
    )


def stop(container_id: str, *, grace: int) -> None:
    begun = time.monotonic()
    called("stop", "--time", str(grace), container_id)
    assert time.monotonic() - begun < grace
    assert called("inspect", "--format", "{{.State.ExitCode}}", container_id) == "0"
