"""The packages of each image, read from deploy/Dockerfile, pyproject.toml and the metadata of installed packages."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
_OF_THE_BUILD = {"$@": ["--without", "triton"]}
"""What a variable of the Dockerfile holds without a GPU."""


def steps(target: str) -> Iterator[str]:
    """Yield the instructions of a target and of the targets that it is built from, without comments."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", text, flags=re.MULTILINE | re.DOTALL))
    (parent,) = re.findall(rf"^FROM (\S+) AS {target}$", text, flags=re.MULTILINE)
    if parent in stages:
        yield from steps(parent)
    yield from stages[target].splitlines()


def packages_of_image(target: str) -> frozenset[str]:
    """Return the normalised names of all packages in an image, those that others require included."""
    lists = [each for step in steps(target) for each in re.findall(r"list-packages (.*?) > ", step)]
    return frozenset().union(*(_closure(_listed(arguments)) for arguments in lists))


def _listed(arguments: str) -> tuple[str, ...]:
    chosen = [word for part in arguments.split() for word in _OF_THE_BUILD.get(part.strip('"'), [part])]
    command = [sys.executable, "deploy/list-packages", *chosen]
    return tuple(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())


@cache
def _closure(requirements: tuple[str, ...]) -> frozenset[str]:
    seen, waiting = set[tuple[str, frozenset[str]]](), [Requirement(each) for each in requirements]
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key not in seen:
            seen.add(key)
            waiting += [each for each in map(Requirement, _requires(wanted)) if _applies(each, wanted.extras)]
    return frozenset(name for name, _ in seen)


def _requires(wanted: Requirement) -> list[str]:
    return distribution(wanted.name).requires or []


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    return requirement.marker is None or any(requirement.marker.evaluate({"extra": each}) for each in (*extras, ""))
