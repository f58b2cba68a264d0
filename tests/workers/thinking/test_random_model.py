"""Tests of a small random model with every template: it thinks within a budget, and answers by a schema behind that."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from engine.llm import LLM
from engine.outputs import TokenDelta
from tests.engine.tiny_models import save_tiny
from tests.workers.chat_templates import Family, tokenizer_of
from tests.workers.thinking.builders import prepare, reasoning_tokens
from tests.workers.thinking.families import ON, THINKING
from workers.answers import Answer, AnswerMaker
from workers.line_run import LineRun
from workers.prompts import PreparedLine
from workers.thinking.marks import marks_of

BUDGET = 6
SCHEMA = {
    "type": "object",
    "properties": {"due": {"type": "boolean"}, "days": {"enum": [30, 60]}},
    "required": ["due", "days"],
    "additionalProperties": False,
}
STRUCTURED: dict[str, Any] = {
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
}


def _union() -> Family:
    """Return a family with the tokens of all, so that one model runs every template."""
    names = dict.fromkeys(token for one in THINKING.values() for token in (*one.special, *one.added))
    return Family(template="", special=tuple(names), eos="<|endoftext|>")


@cache
def _tokenizer(name: str) -> Any:
    made = tokenizer_of(_union())
    made.chat_template, made.bos_token = THINKING[name].template, THINKING[name].bos
    return made


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    tokenizer = tokenizer_of(_union())
    tokenizer.save_pretrained(tmp_path)
    size = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": 4096}
    save_tiny(tmp_path, {"model_type": "llama", "initializer_range": 0.05, **size})
    return LLM(tmp_path, dtype="float32", num_kv_blocks=600, max_num_seqs=64, warm_up=False)


def prepared(name: str) -> PreparedLine:
    """Prepare a line whose model begins to think, and does not end its thoughts by itself."""
    found = marks_of(THINKING[name].template, _tokenizer(name))
    assert found is not None
    marks = found.tokens
    begin = marks.begin[:2][-1]  # of channels the first token of the name, which decides
    body: dict[str, Any] = {"seed": 5, "max_tokens": 90, "thinking_token_budget": BUDGET}
    bias: dict[str, Any] = {"logit_bias": {str(begin): 8, str(marks.end): -100}}
    return prepare(_tokenizer(name), **ON.get(name, {}), **STRUCTURED, **body, **bias)


def answer_of(line: PreparedLine, name: str, token_ids: list[int], finish_reason: Any) -> Answer:
    run = LineRun(line, _tokenizer(name), batch_id="b", on_done=lambda _: None, on_stopped=lambda *_: None)
    run.prompt_runs[0].receive(TokenDelta(request_id=0, token_ids=token_ids, finish_reason=finish_reason))
    return AnswerMaker(_tokenizer(name), model="demo").make(run, response_id="chatcmpl-1", created=7)


def test_a_random_model_thinks_within_its_budget_and_answers_by_its_schema(llm: LLM) -> None:
    """All templates in one batch: of each the prompt, the thoughts, the end of the budget, and the answer parted."""
    lines = {name: prepared(name) for name in THINKING}
    prompts: list[Any] = [{"prompt_token_ids": list(line.prompts[0])} for line in lines.values()]
    found = llm.generate(prompts, [line.params for line in lines.values()])
    for (name, line), output in zip(lines.items(), found, strict=True):
        one = output.outputs[0]
        assert one.finish_reason == "stop", (name, one.error)
        answer = answer_of(line, name, one.token_ids, one.finish_reason)
        choice = answer.body["choices"][0]
        assert jsonschema_rs.is_valid(SCHEMA, json.loads(choice["message"]["content"])), name
        assert (reasoning_tokens(answer), choice["reasoning_finish_reason"]) == (BUDGET, "budget"), name
        assert "reasoning_content" in choice["message"], name
