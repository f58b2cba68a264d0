"""Tests of lines with passages in their prompts: every run shows the same ones, and the answer names them."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import orjson
import pytest
from sqlalchemy import text

from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.reading import InputLine
from tests.features.retrieval.fills.finding import Finding
from tests.workers.chunks.builders import Bench, FakeHost, MakeLine, SubmitLines

CATS = "Cats purr."


@pytest.fixture
def wanting(line: MakeLine) -> MakeLine:
    """Make lines that request passages about cats; keywords as of `line`."""

    def make(number: int, **body: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": f"{{{{context}}}}\nQuestion {number}"}]
        context = {"index": "index_1", "query": "cats", "max_tokens": 100, "top_k": 2}
        return line(number, **({"messages": messages, "context": context} | body))

    return make


def answers(bench: Bench, batch_id: str) -> list[dict[str, Any]]:
    with bench.maker() as session:
        mine = text("SELECT line FROM result WHERE batch_id = :id ORDER BY line_no")
        rows = session.scalars(mine, {"id": batch_id})
        return [orjson.loads(row)["response"]["body"] for row in rows]


def test_an_answer_says_which_passages_its_prompt_showed(
    bench: Bench, host: FakeHost, submit: SubmitLines, wanting: MakeLine, line: MakeLine, tokenizer: Any
) -> None:
    finding = Finding(bench.maker, bench.services.storage, bench.services.settings, {"index_1": {"cats.txt": CATS}})
    batch_id = submit([wanting(0), line(1), wanting(2, temperature=0), wanting(2, temperature=0) | {"custom_id": "c3"}])
    finding.prepare(batch_id)
    finding.passages.clear()
    host.instant = True
    bench.start(bench.claim())
    bench.join()
    shown = f"[1] cats.txt\n{CATS}\nQuestion 0"
    assert shown in tokenizer.decode(host.prompts[0])
    first, plain, original, copy = answers(bench, batch_id)
    assert [(one["number"], one["document"]) for one in first["context"]["passages"]] == [(1, "cats.txt")]
    assert "context" not in plain
    assert copy["context"] == original["context"]
    assert copy["usage"]["copy_of"] == "c2"


def test_passages_count_with_the_most_they_may_have_before_they_are_found(
    bench: Bench, wanting: MakeLine, tokenizer: Any
) -> None:
    numbers = itertools.count()

    def measured(body: dict[str, Any]) -> tuple[int, int]:
        asked = InputLine(line_no=next(numbers), custom_id="a", model="demo", body=body)
        return bench.parts.prompts.measure(
            asked, endpoint=CHAT_ENDPOINT, default_max_tokens=8, is_wanted=lambda: True, room=nullcontext
        )

    body = wanting(0)["body"]
    with_passages, plain = measured(body), measured({key: body[key] for key in body if key != "context"})
    assert with_passages == (plain[0] + 100 + 2 * 16, plain[1])
