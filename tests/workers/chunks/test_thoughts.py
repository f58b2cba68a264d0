"""Tests of a batch whose model thinks: its results, counters and bill tell thoughts from answers."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from sqlalchemy import text

from engine.process.messages import FinishReason, TokenDelta
from jobs.audit.audit import audit
from tests.workers.chunks.builders import Bench, FakeHost, MakeLine, SubmitLines
from tests.workers.thinking.families import thinking_tokenizer

SAID = [
    ("<think>\nIs it due?\n</think>\n\nYes.", FinishReason.STOP),
    ("<think>\nIt may", FinishReason.LENGTH),
    ("No.", FinishReason.STOP),
]


@pytest.fixture
def tokenizer() -> Any:
    return thinking_tokenizer("qwen3")


def say(host: FakeHost, tokenizer: Any) -> list[int]:
    """Answer the waiting requests with what is said in each; return the tokens of their thoughts."""
    for (request_id, (_, owner)), (said, end) in zip(sorted(host.waiting.items()), SAID, strict=True):
        token_ids = tokenizer.encode(said, add_special_tokens=False)
        if end is FinishReason.STOP:
            token_ids.append(tokenizer.eos_token_id)
        owner.receive(TokenDelta(request_id=request_id, token_ids=token_ids, finish_reason=end))
    return [len(tokenizer.encode(each, add_special_tokens=False)) for each in ("\nIs it due?\n", "\nIt may", "")]


def test_thoughts_are_apart_in_results_counters_and_bill(
    bench: Bench, host: FakeHost, submit_valid: SubmitLines, line: MakeLine, tokenizer: Any
) -> None:
    submit_valid([line(number, max_tokens=40) for number in range(3)])
    bench.start(bench.claim())
    host.wait_for(3)
    num_thoughts = say(host, tokenizer)
    bench.join()
    with bench.maker() as session:
        lines = session.execute(text("SELECT line FROM result ORDER BY line_no")).scalars().all()
        batch = session.execute(text("SELECT reasoning_tokens, output_tokens, num_truncated FROM batch")).one()
        billed = session.execute(text("SELECT sum(reasoning_tokens)::int FROM ledger")).scalar_one()
    with bench.maker() as fresh:
        assert audit(fresh) == []
    bodies = [orjson.loads(each)["response"]["body"] for each in lines]
    messages = [body["choices"][0]["message"] for body in bodies]
    assert [message["content"] for message in messages] == ["Yes.", None, "No."]
    assert [message.get("reasoning_content") for message in messages] == ["Is it due?", "It may", None]
    usages = [body["usage"]["completion_tokens_details"]["reasoning_tokens"] for body in bodies]
    assert usages == num_thoughts
    assert batch.reasoning_tokens == billed == sum(num_thoughts) < batch.output_tokens
    assert batch.num_truncated == 1
