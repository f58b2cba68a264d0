"""Tests of the images' contents without Docker: each has what its roles import, and no engine where none runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from typing import Any

import pytest
import yaml
from packaging.utils import canonicalize_name

from tests.deploy.image_packages import ROOT, packages_of_image, steps
from tests.deploy.role_imports import MODULES, libraries_of_role

OPTIONAL = {
    "rapidocr": "the extra `ocr`: without it scanned pages are reported as unread, and images are refused",
    "cv2": "the extra `ocr`, which brings it",
    "pynvml": "the extra `gpu`: energy of a CUDA device",
}
"""Packages that the code does without."""


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    return found


def target_of(role: str) -> str:
    """Return the one target of deploy/Dockerfile that compose starts a role from."""
    (target,) = {each["build"]["target"] for each in services().values() if each.get("command", [""])[0] == role}
    return str(target)


@cache
def distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


@pytest.mark.parametrize("role", MODULES)
def test_an_image_has_every_package_that_its_role_imports(role: str) -> None:
    """Without `documents` prepare workers exited at once, and were restarted forever."""
    packages = packages_of_image(target_of(role))
    imported = libraries_of_role(role)
    assert len(imported) > 10
    missing = {
        name: module
        for name, module in imported.items()
        if name not in OPTIONAL and not packages & {canonicalize_name(each) for each in distributions()[name]}
    }
    assert missing == {}


def test_an_engine_is_in_the_image_of_workers_alone() -> None:
    engine = {"torch", "transformers", "numba"}
    assert engine <= packages_of_image("worker")
    assert not engine & packages_of_image("server")
    assert "triton" not in packages_of_image("worker"), "1 GB that only a GPU uses"


def test_images_run_as_a_user_of_their_own() -> None:
    for target in ("server", "worker"):
        users = [step for step in steps(target) if step.startswith("USER")]
        assert users == ["USER tokenmill"], target


def test_what_compose_builds_are_targets_with_an_image_each() -> None:
    built = {
        (each["image"], each["build"]["target"], each["build"].get("args", {}).get("TORCH", "cpu"))
        for each in services().values()
        if "build" in each
    }
    assert len({image for image, _, _ in built}) == len(built)
    assert {target for _, target, _ in built} == {"server", "worker"}
