"""Tests that each surface of the service loads only its own parts of the features, and no library of the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.overview import commands
from features import FEATURES
from features.feature import resolve

ROOT = Path(__file__).resolve().parent.parent

WEB, SQL, QUEUE, TENSORS = "fastapi", "sqlalchemy", "celery", "torch"

LOADED = {
    "the list of features": ("import features", {WEB, SQL, QUEUE, TENSORS}),
    "tokenmill --help": (
        "from typer.testing import CliRunner; from cli.app import app; CliRunner().invoke(app, ['--help'])",
        {WEB, SQL, QUEUE, TENSORS},
    ),
    "the settings": ("from jobs.settings import load_settings; load_settings()", {WEB, SQL, QUEUE, TENSORS}),
    "the API": ("from features import parts; import api.app; parts('routers'); parts('pages')", {QUEUE, TENSORS}),
    "a control worker": ("from features import parts; import workers.control; parts('control')", {WEB, TENSORS}),
    "a dispatcher": ("import workers.dispatcher", {WEB, TENSORS}),
    "a GPU worker": ("import workers.gpu_main", {WEB}),
    "a prepare worker": ("import workers.preparing.main", {WEB, TENSORS}),
    "migrations": ("from features import load_tables; load_tables()", {WEB, QUEUE, TENSORS}),
}
"""By surface: the imports of its process, and the libraries that it must not load."""


@pytest.mark.parametrize("surface", list(LOADED))
def test_a_surface_loads_no_library_of_another(surface: str) -> None:
    program, banned = LOADED[surface]
    assert loaded_by(program, banned) == []


def test_commands_of_features_load_where_no_server_is_installed() -> None:
    modules = sorted({command.part.partition(":")[0] for command in commands()})
    assert loaded_by("\n".join(f"import {module}" for module in modules), {WEB, SQL, QUEUE, TENSORS}) == []


def loaded_by(program: str, libraries: set[str]) -> list[str]:
    """Return which of these libraries a program has loaded."""
    program = f"{program}\nimport sys\nprint(*sorted(set({sorted(libraries)!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


KINDS = (
    *("routers", "bodies", "lines", "pages"),
    *("control", "purges", "counts", "on_event", "stored_bytes", "on_tenant_end"),
)


def part_names() -> list[str]:
    """Return every part that a feature names."""
    listed = [name for feature in FEATURES for kind in KINDS for name in getattr(feature, kind)]
    named = [name for feature in FEATURES for name in (*feature.services.values(), *feature.meters.values())]
    return [*listed, *named, *(command.part for command in commands())]


@pytest.mark.parametrize("name", part_names())
def test_every_part_is_there(name: str) -> None:
    assert resolve(name) is not None


def test_services_of_features_have_names_of_their_own() -> None:
    names = [name for feature in FEATURES for name in feature.services]
    assert len(set(names)) == len(names)


def test_every_feature_has_its_name() -> None:
    names = [feature.name for feature in FEATURES]
    assert len(set(names)) == len(names)
    assert all((ROOT / "features" / name / "feature.py").is_file() for name in names)
