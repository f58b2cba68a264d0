"""The recipe for a feature in CONTRIBUTING: applied to a copy of the sources, its files make a table, endpoints, a
command and a page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory

from jobs.database.schema import alembic_config
from tests.database_roles import as_superuser

ROOT = Path(__file__).resolve().parents[2]
PATCH = Path(__file__).with_name("labels.patch")
LEFT_OUT = shutil.ignore_patterns(".*", "tests", "docs", "__pycache__", "node_modules")
MOST_CENTRAL_FILES = 2
"""Files that a feature with a table changes: the list of features, and the rights of the database's roles."""

Run = Callable[..., list[str]]


def patch() -> str:
    """Return the patch with the number of the next migration."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    following = f"{int(head) + 1:04}"
    return PATCH.read_text(encoding="utf-8").replace("1001", following).replace('"1000"', f'"{head}"')


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function that runs Python in a copy with the feature, and returns the words that it printed."""
    copy = tmp_path_factory.mktemp("copy") / "tokenmill"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    (copy / "tests").mkdir()
    for name in ("floors.py", "sources.py", "test_architecture.py"):
        shutil.copy(ROOT / "tests" / name, copy / "tests")
    subprocess.run(["git", "apply", "-"], cwd=copy, input=patch(), text=True, check=True)

    def run(*arguments: str) -> list[str]:
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.split()

    return run


def test_a_feature_changes_two_files_of_others() -> None:
    changed = [block for block in patch().split("diff --git ")[1:] if "new file mode" not in block]
    assert len(changed) <= MOST_CENTRAL_FILES


def test_its_endpoints_and_its_page_are_served(run: Run) -> None:
    program = (
        "from api.app import create_app; from jobs.settings import Settings; "
        "app = create_app(Settings(database_url='postgresql://nobody@127.0.0.1:1/nothing', storage_url='memory://')); "
        "from features import parts; "
        "print(*app.openapi()['paths']['/v1/labels'], *(route.path for router in parts('pages') "
        "for route in router.routes if route.path == '/labels'))"
    )
    assert run("-c", program) == ["post", "get", "/labels"]


def test_its_command_is_there(run: Run) -> None:
    assert "labels" in run("-m", "cli.main", "--help")
    assert "list" in run("-m", "cli.main", "labels", "--help")


def test_its_table_is_made_and_used(run: Run, empty_database: str) -> None:
    program = f"""
from sqlalchemy.orm import Session
from features.labels.labels import create_label, list_labels
from jobs.accounts.tenants import create_tenant
from jobs.database import connect, upgrade
url = {as_superuser(empty_database)!r}
upgrade(url)
engine = connect(url)
with Session(engine) as session, session.begin():
    tenant = create_tenant(session, "acme")
    create_label(session, tenant.id, "green")
    print(*(label.name for label in list_labels(session, tenant.id, after=None, limit=9).data))
engine.dispose()
"""
    assert run("-c", program) == ["green"]


def test_it_stands_within_the_floors(run: Run) -> None:
    assert "passed" in run("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "tests/test_architecture.py")
