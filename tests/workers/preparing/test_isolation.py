"""Tests of a prepare worker on a kernel that lacks a layer of confinement: it starts, or names the layer and exits."""

from __future__ import annotations

import logging
import os
import platform
import re
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from confined.isolation import Layer
from features.documents.extraction.documents.process import isolation
from features.documents.extraction.documents.process.isolation import Isolation
from jobs.errors import ServiceError
from workers.preparing.main import check_isolation

UNSHARE = {"x86_64": 272, "aarch64": 97}.get(platform.machine(), 0)


def lacking(monkeypatch: pytest.MonkeyPatch, layers: Collection[Layer]) -> None:
    monkeypatch.setattr(isolation, "missing_layers", lambda: frozenset(layers))


def refusal(monkeypatch: pytest.MonkeyPatch, layers: Collection[Layer]) -> str:
    lacking(monkeypatch, layers)
    with pytest.raises(ServiceError) as caught:
        check_isolation(is_required=True)
    return caught.value.message


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records]


def test_required_isolation_starts_where_every_layer_is_there(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    lacking(monkeypatch, [])
    check_isolation(is_required=True)
    assert levels(caplog) == [logging.INFO]
    assert Isolation.probe().present == "calls, files, parent, namespaces"


@pytest.mark.parametrize("layers", [*([layer] for layer in Layer), list(Layer)], ids=[*Layer, "all"])
def test_required_isolation_refuses_to_start_and_names_what_is_missing_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, layers: list[Layer]
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    message = refusal(monkeypatch, layers)
    assert set(re.findall(r"\b(\w+): ", message)) == set(layers)
    assert set(re.findall(r"[Ff]or (\w+), ", message)) == set(layers)
    assert ("user.max_user_namespaces" in message) is (Layer.NAMESPACES in layers)


@pytest.mark.parametrize("system", ["darwin", "freebsd14"])
def test_elsewhere_than_on_linux_required_isolation_names_every_layer(
    monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    message = refusal(monkeypatch, list(Layer))
    assert set(re.findall(r"\b(\w+): ", message)) == set(Layer)
    assert system in message
    assert "sysctl" not in message


@pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux'")
def test_a_prepare_worker_that_may_make_no_namespaces_ends_at_its_start(database_url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.confined.refusing", str(UNSHARE), "-m", "cli.main", "prepare"]
    settings = {
        "TOKENMILL_READER_ISOLATION": "required",
        "TOKENMILL_DATABASE_URL": database_url,
        "TOKENMILL_STORAGE_URL": (tmp_path / "objects").as_uri(),
    }
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **settings}
    )
    assert done.returncode == 1
    assert "namespaces" in done.stderr


@pytest.mark.parametrize(("layer", "level"), [(Layer.FILES, logging.WARNING), (Layer.NAMESPACES, logging.INFO)])
def test_the_best_isolation_goes_on_with_what_there_is_and_warns_of_a_gap(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, layer: Layer, level: int
) -> None:
    caplog.set_level(logging.INFO)
    lacking(monkeypatch, [layer])
    check_isolation(is_required=False)
    assert levels(caplog) == [level]


def test_a_probe_that_dies_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ServiceError):
        check_isolation(is_required=False)
