"""What the README says to copy does what it says, copied to the letter."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[2] / "README.md"


def _block(language: str, beginning: str) -> str:
    """Return the README's block of code in `language` whose text has `beginning` at its head."""
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.M | re.S)
    return next(block for block in blocks if block.startswith(beginning))


def test_the_python_snippet_prints_the_answer_to_the_line_shown_above_it(stack: Any, tmp_path: Path) -> None:
    (tmp_path / "requests.jsonl").write_text(_block("json", '{"custom_id"'))
    done = subprocess.run(
        [sys.executable, "-c", _block("python", "from openai import OpenAI")],
        capture_output=True, text=True, env=stack.environment, cwd=tmp_path, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["custom_id"], answer["response"]["status_code"]) == ("a", 200)
