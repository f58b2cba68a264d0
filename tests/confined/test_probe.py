"""Tests of probing a machine's layers in a process, also on a kernel that lacks some calls."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Sequence

import orjson
import pytest

from confined.isolation import ESSENTIAL, LAYERS, REMEDIES, Layer
from confined.probe import missing_layers
from tests.confined.refusing import LANDLOCK

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the layers are Linux'")
SECCOMP, UNSHARE = {"x86_64": (317, 272), "aarch64": (277, 97)}.get(platform.machine(), (0, 0))


def missing_without(numbers: Sequence[int]) -> set[str]:
    refused = ",".join(map(str, numbers))
    command = [sys.executable, "-m", "tests.confined.refusing", refused, "-m", "confined.probe"]
    return set(orjson.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout))


@LINUX
@pytest.mark.parametrize(
    ("numbers", "layer"),
    [(LANDLOCK, Layer.FILES), ((SECCOMP,), Layer.CALLS), ((UNSHARE,), Layer.NAMESPACES)],
    ids=["no Landlock", "no seccomp", "no namespaces"],
)
def test_a_layer_that_the_kernel_lacks_is_named(numbers: Sequence[int], layer: Layer) -> None:
    assert missing_without(numbers) == {layer, *missing_layers()}


@LINUX
def test_the_layers_of_every_linux_are_here() -> None:
    assert not missing_layers() & {Layer.CALLS, Layer.PARENT}


@pytest.mark.parametrize("system", ["darwin", "freebsd14"])
def test_elsewhere_than_on_linux_every_layer_is_named_as_missing(system: str) -> None:
    code = f"import sys; sys.platform = {system!r}; from confined.probe import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert set(orjson.loads(done.stdout)) == set(Layer)


def test_every_layer_says_what_it_gives_and_how_to_have_it() -> None:
    assert set(LAYERS) == set(REMEDIES) == set(Layer)
    assert set(Layer) > ESSENTIAL
