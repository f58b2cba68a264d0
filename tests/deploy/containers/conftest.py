"""Fixtures: one stack of containers with a tenant, where scripts/containers has prepared a daemon and images."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.embedded.sockets import free_port
from tests.deploy.containers.composed import SOCKET, Composed
from tests.e2e.builders import Customer


@pytest.fixture(scope="session")
def daemon() -> None:
    answers = subprocess.run(["docker", "-H", f"unix://{SOCKET}", "version"], capture_output=True, check=False)
    if answers.returncode != 0:
        pytest.skip(f"no Docker daemon answers at {SOCKET}; run scripts/containers")


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder on the host where pipelines may read and write."""
    folder = tmp_path_factory.mktemp("stores")
    folder.chmod(0o777)
    return folder


@pytest.fixture(scope="session")
def stack(daemon: None, tmp_path_factory: pytest.TempPathFactory, stores: Path) -> Iterator[Composed]:
    folder = tmp_path_factory.mktemp("composed")
    stack = Composed(folder=folder, port=free_port(), settings={"TOKENMILL_STORES": str(stores)})
    stack.lay_out()
    try:
        stack.up()
        stack.add_tenant("acme")
        yield stack
    finally:
        stack.run(stack.compose, "down", "--volumes", "--timeout", "5")


@pytest.fixture
def customer(stack: Composed) -> Customer:
    return Customer(id="acme", client=stack.client(), stack=stack)
