from __future__ import annotations

import re

import pytest

from tests.jobs.configuration_page import PAGE, PREFIX, ROOT, configuration_page, variables

SOURCES = ["api", "benchmarks", "cli", "engine", "jobs", "kernels", "migrations", "workers", "deploy", "scripts"]


def test_the_page_is_what_the_generator_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), "run: python -m tests.jobs.configuration_page"


@pytest.mark.parametrize("name", variables())
def test_every_variable_says_what_it_does(name: str) -> None:
    assert variables()[name].endswith(".")


@pytest.mark.parametrize("name", variables())
def test_every_variable_has_a_whole_row(name: str) -> None:
    assert re.search(rf"^\| `{name}` \| .*\. \|$", configuration_page(), re.MULTILINE)


def test_every_variable_that_is_named_anywhere_is_on_the_page() -> None:
    files = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in ("", ".py")]
    files += [ROOT / "docker-compose.yml", ROOT / ".env.example"]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    named = {name for text in texts for name in re.findall(rf"\b{PREFIX}[A-Z_]*[A-Z]\b", text)}
    assert named <= set(variables())
