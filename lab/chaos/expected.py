"""The expected content of a batch's files: every line once, with its answer or the reason it was not run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

ENDPOINT = "/v1/completions"
MAX_TOKENS = 64
"""Of an answer, unless a run has others."""
_MOST_LISTED = 5
REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The lines of one batch; each line's prompt is unique."""

    name: str
    num: int
    model: str
    max_tokens: int = MAX_TOKENS

    def content(self) -> bytes:
        """Return the input file."""
        return "".join(f"{json.dumps(self._line(number))}\n" for number in range(self.num)).encode()

    def prompt(self, number: int) -> str:
        return f"line {number} of {self.name}"

    def custom_id(self, number: int) -> str:
        return f"{self.name}-{number}"

    def _line(self, number: int) -> dict[str, object]:
        body = {"model": self.model, "prompt": self.prompt(number), "max_tokens": self.max_tokens, "temperature": 0}
        return {"custom_id": self.custom_id(number), "method": "POST", "url": ENDPOINT, "body": body}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An engine's answer to a prompt, always the same."""

    text: str
    num_tokens: int
    """With the end token, if it was reached."""


@dataclass(slots=True, kw_only=True)
class Found:
    """The content of a batch's files."""

    num_answers: int = 0
    num_tokens: tuple[int, int] = (0, 0)
    """Of prompts and answers, as reported in the answers."""
    num_not_run: int = 0
    problems: list[str] = field(default_factory=list)


def check_files(
    lines: Lines,
    output: bytes,
    errors: bytes,
    *,
    not_run: str | None,
    count_tokens: Callable[[str], int],
    answers: Mapping[str, Answer] | None = None,
) -> Found:
    """Compare both files with what is expected; `not_run` is the code of lines that an early end left out, if any.

    Without `answers`, by their prompts, the answer to a prompt is the prompt and the end token: it has one token more
    than the prompt's `count_tokens`.
    """
    found = Found()
    problems: list[str] = []
    counts: Counter[str] = Counter()
    numbers = {lines.custom_id(number): number for number in range(lines.num)}
    for row in _rows(output):
        counts[row["custom_id"]] += 1
        number = numbers.get(row["custom_id"])
        if number is None:
            problems.append(f"{row['custom_id']} was never submitted")
            continue
        body = row["response"]["body"]
        prompt = lines.prompt(number)
        usage = (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"])
        num_tokens = count_tokens(prompt)
        answer = Answer(text=prompt, num_tokens=num_tokens + 1) if answers is None else answers[prompt]
        if _readable(body["choices"][0]["text"]) != _readable(answer.text):
            problems.append(f"{row['custom_id']} has the answer {body['choices'][0]['text']!r}")
        if usage != (num_tokens, answer.num_tokens):
            problems.append(f"{row['custom_id']} reports {usage} tokens")
        found.num_answers += 1
        found.num_tokens = (found.num_tokens[0] + usage[0], found.num_tokens[1] + usage[1])
    for row in _rows(errors):
        counts[row["custom_id"]] += 1
        code = row["error"]["code"] if row["error"] else f"status {row['response']['status_code']}"
        found.num_not_run += 1
        if code != not_run:
            problems.append(f"{row['custom_id']} failed: {code}")
    problems += [f"{custom_id} is present {num} times" for custom_id, num in counts.items() if num > 1]
    problems += [f"{custom_id} is lost" for custom_id in numbers if custom_id not in counts]
    found.problems = problems[:_MOST_LISTED]
    if len(problems) > _MOST_LISTED:
        found.problems.append(f"and {len(problems) - _MOST_LISTED} more")
    return found


def _readable(text: str) -> str:
    """Return a text without broken characters, which engines show or leave out."""
    return text.replace(REPLACEMENT, "")


def _rows(content: bytes) -> Iterator[dict[str, Any]]:
    return map(json.loads, content.splitlines())
