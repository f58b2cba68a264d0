"""Tests of deploy/list-contents on this environment: a bill of materials with every package, in CycloneDX' form."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import distribution
from typing import Any

import pytest

from tests.deploy.image_packages import ROOT


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, ROOT / "deploy" / "list-contents"], check=True, capture_output=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_package_has_its_version_and_licence(bill: dict[str, Any]) -> None:
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    version = distribution("orjson").version
    (orjson,) = [each for each in bill["components"] if each["name"] == "orjson"]
    assert orjson["purl"] == orjson["bom-ref"] == f"pkg:pypi/orjson@{version}"
    (licence,) = orjson["licenses"]
    assert "MIT" in licence["expression"]


def test_a_component_is_listed_once(bill: dict[str, Any]) -> None:
    refs = [each["bom-ref"] for each in bill["components"]]
    assert len(refs) == len(set(refs)) > 100


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no Debian")
def test_debians_packages_are_in_it(bill: dict[str, Any]) -> None:
    assert any(each["purl"].startswith("pkg:deb/debian/libc6@") for each in bill["components"] if "purl" in each)
