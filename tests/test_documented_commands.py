"""Tests that commands in documents exist: program, command and options. None of them is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
import typer

from cli.app import app

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (".", "docs", "docs/adr", "docs/tutorials", "*", "examples/*")
PAGES = sorted({str(path.relative_to(ROOT)) for folder in FOLDERS for path in ROOT.glob(f"{folder}/*.md")})
BEFORE = r"(?:\$ )?(?:[A-Z_]+=\S+ )*(?:docker compose exec \w+ )?(?:\S*/)?"
COMMAND = re.compile(BEFORE + r"(tokenmill|python -m|bash)(?: (.*))?")
OPTION = re.compile(r"--[a-z][a-z0-9-]*|-[a-z]")
ENDS = {"|", "||", "&&", ">", "<", "2>", ";", "&", "…"}
OTHERS_MODULES = {"pip", "venv", "pytest"}
TREE: Any = typer.main.get_command(app)


def commands_of(page: str) -> Iterator[str]:
    """Yield the code of a page that begins like a command."""
    text = re.sub(r"\\\n\s*", " ", (ROOT / page).read_text(encoding="utf-8"))
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    plain = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^    (\S.*)$", plain, flags=re.MULTILINE)
    inline = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", plain)]
    for line in [line for block in fenced for line in block.splitlines()] + indented + inline:
        if match := COMMAND.fullmatch(line.strip()):
            yield f"{match[1]} {match[2] or ''}"


def words_of(command: str) -> list[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # an apostrophe in the surrounding sentence
        words = command.split()
    end = next((index for index, word in enumerate(words) if word in ENDS or word.endswith(";")), len(words))
    return words[:end]


def problems(command: str) -> list[str]:
    """Return the parts of a command that do not exist."""
    program, *words = words_of(command)
    if program == "bash":
        return [word for word in words[:1] if word.startswith("scripts/") and not (ROOT / word).is_file()]
    if program == "python":
        module = words[1].partition(".")[0]
        path = ROOT.joinpath(*words[1].split("."))
        is_there = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() or module in OTHERS_MODULES
        return unknown_options(words, read_in(module)) if is_there else [words[1]]
    return unknown_words(TREE, words)


def unknown_options(words: list[str], known: set[str]) -> list[str]:
    options = [word.partition("=")[0] for word in words]
    return [name for name in options if OPTION.fullmatch(name) and name not in known | {"-m", "--help"}]


def options_of(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)}


@cache
def read_in(package: str) -> set[str]:
    """Return the options of all parsers in a package together."""
    if package in OTHERS_MODULES:
        return {f"-{letter}" for letter in ascii_lowercase} | {"--prefix", "--target"}
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / package).rglob("*.py"))
    return set(re.findall(r'"(--?[a-z][a-z0-9-]*)"', sources))


def unknown_words(command: Any, words: list[str]) -> list[str]:
    if not hasattr(command, "commands"):
        known = options_of(command)
        if command.context_settings.get("ignore_unknown_options"):  # a benchmark parses its own, or passes them on
            known = known | read_in("benchmarks") | read_in("lab")
            known = known | options_of(TREE.commands["extract"].commands["run"])
        return unknown_options(words, known)
    if not words or words[0].startswith("-"):
        return []
    names = words[0].split("|")  # the first of several commands
    if unknown := [name for name in names if name not in command.commands]:
        default = command.commands["run"] if command.name == "extract" else None
        return unknown if default is None else unknown_words(default, words)
    return [word for name in names for word in unknown_words(command.commands[name], words[1:])]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_is_there(page: str) -> None:
    found = {command: wrong for command in commands_of(page) if (wrong := problems(command))}
    assert found == {}


def test_what_is_not_there_is_found() -> None:
    assert problems("tokenmill batch create x.jsonl --wait") == []
    assert problems("tokenmill batch create x.jsonl --await") == ["--await"]
    assert problems("tokenmill batch list|make") == ["make"]
    assert problems("tokenmill extract papers --schemes s.json") == ["--schemes"]
    assert problems("tokenmill bench peers --tests") == ["--tests"]
    assert problems("python -m lab.make_model build/S --shapes S") == ["--shapes"]
    assert problems("python -m lab.nothing --help") == ["lab.nothing"]
    assert problems("bash scripts/nothing") == ["scripts/nothing"]
