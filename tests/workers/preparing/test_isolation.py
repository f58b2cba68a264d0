"""Tests of a prepare worker on a kernel that lacks a layer of confinement: it starts, or names the layer and exits."""

from __future__ import annotations

import logging
import sys

import pytest

from confined.isolation import Layer
from features.documents.extraction.documents.process import isolation
from features.documents.extraction.documents.process.isolation import Isolation
from jobs.errors import ServiceError
from workers.preparing.main import check_isolation


def lacking(monkeypatch: pytest.MonkeyPatch, *layers: Layer) -> None:
    monkeypatch.setattr(isolation, "missing_layers", lambda: frozenset(layers))


@pytest.mark.parametrize("layer", [Layer.CALLS, Layer.FILES, Layer.PARENT])
def test_required_isolation_refuses_to_start_and_names_the_layer(monkeypatch: pytest.MonkeyPatch, layer: Layer) -> None:
    lacking(monkeypatch, layer, Layer.NAMESPACES)
    with pytest.raises(ServiceError, match=rf"lack .*\b{layer}: "):
        check_isolation(is_required=True)


def test_the_best_isolation_goes_on_with_what_there_is_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lacking(monkeypatch, Layer.FILES)
    check_isolation(is_required=False)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_namespaces_alone_are_not_required(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking(monkeypatch, Layer.NAMESPACES)
    check_isolation(is_required=True)
    assert Isolation.probe().present == "calls, files, parent"


def test_a_probe_that_dies_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ServiceError):
        check_isolation(is_required=False)
