"""Runs a page of docs/tutorials as a reader would: `tokenmill up` in one terminal, everything else in a second one.

A block of `bash` is typed; the block of `text` below it is the terminal's expected output, in which `…` stands for
anything.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BLOCK = re.compile(r"^```(bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DONE = "--- done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A block of commands, and the output that the page shows below it."""

    commands: str
    shown: str | None


def steps(page: Path) -> Iterator[Step]:
    blocks: list[tuple[str, str]] = _BLOCK.findall(page.read_text(encoding="utf-8"))
    following = [*blocks[1:], ("bash", "")]
    for (language, content), (next_language, next_content) in zip(blocks, following, strict=True):
        if language == "bash":
            yield Step(commands=content, shown=next_content if next_language == "text" else None)


def matches(shown: str, printed: str) -> bool:
    """Return whether a page may show `shown` for a printed text, which has a tab where a terminal aligns columns."""
    pattern = ".*?".join(re.escape(_plain(part)) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, _plain(printed.strip()), re.DOTALL) is not None


def _plain(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text)


class Terminal:
    """A shell that stays open: later blocks keep the state of earlier ones."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=folder, env=dict(environment), start_new_session=True,
        )  # fmt: skip

    def run(self, commands: str) -> tuple[str, int]:
        """Type a block; return its output and the status of its last command."""
        self.send(f"{commands.rstrip()}\nprintf '\\n%s %d\\n' '{_DONE}' $?")
        printed = ""
        while not (line := self._read_line()).startswith(_DONE):
            printed += line
        return printed, int(line.removeprefix(_DONE))

    def send(self, commands: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(commands.rstrip("\n") + "\n")
        self._shell.stdin.flush()

    def close(self) -> None:
        self._shell.communicate("exit\n", timeout=60)

    def _read_line(self) -> str:
        assert self._shell.stdout is not None
        line = self._shell.stdout.readline()
        assert line, "the shell is gone"
        return line
