"""Tests that the targets of references in documents and docstrings exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".", "docs", "docs/adr", "docs/tutorials", "*")
PAGES = sorted(path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md"))
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


@pytest.mark.parametrize("page", sorted({str(path.relative_to(ROOT)) for path in PAGES}))
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    links = LINK.findall((ROOT / page).read_text(encoding="utf-8"))
    assert [link for link in links if not (ROOT / page).parent.joinpath(link).exists()] == []


DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def test_no_two_decisions_have_one_number_and_each_says_its_own() -> None:
    numbers = [path.name[:4] for path in DECISIONS]
    assert numbers == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]
    assert [path.read_text(encoding="utf-8").split(maxsplit=2)[1] for path in DECISIONS] == numbers


def test_the_architecture_page_lists_every_decision_in_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert re.findall(r"\[(\d+) [^]]+\]\(adr/(.+?)\)", page.partition("## Decisions")[2]) == [
        (str(int(path.name[:4])), path.name) for path in DECISIONS
    ]


def test_the_architecture_page_has_a_row_for_every_package() -> None:
    rooms = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").partition("## Words")[0]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"examples", "migrations"}
    assert set(re.findall(r"^\| `(\w+)` \|", rooms, flags=re.MULTILINE)) == packages


PACKAGES = "|".join(sorted(path.parent.name for path in ROOT.glob("*/__init__.py")))
NAMED = re.compile(rf"`((?:{PACKAGES})(?:\.\w+)+)`")


def test_every_module_that_a_docstring_names_is_there() -> None:
    sources = [path for package in PACKAGES.split("|") for path in (ROOT / package).rglob("*.py")]
    named = {name for path in sources for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 50
    assert sorted(name for name in named if not is_there(name)) == []


def is_there(name: str) -> bool:
    """Return whether a name is a package, a module, or a member of its module."""
    path, above = ROOT.joinpath(*name.split(".")), ROOT.joinpath(*name.split(".")[:-1])
    if path.is_dir() or path.with_suffix(".py").is_file():
        return True
    module = above / "__init__.py" if above.is_dir() else above.with_suffix(".py")
    return module.is_file() and re.search(rf"\b{path.name}\b", module.read_text(encoding="utf-8")) is not None
