"""A real vLLM behind a worker: greedy answers are our engine's, and what its features give are valid answers.

Not run by default: `bash scripts/real-engines && bash scripts/test -m engines tests/engines`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionMessageFunctionToolCall
from transformers import AutoTokenizer

from engine import LLM, SamplingParams
from engine.pooling.embedder import Embedder
from lab.make_model import copy_model
from tests.engines.batches import Submit, read, run_all, text_of
from tests.engines.fixtures import Connect
from tests.engines.models import KINDS, ClearLine, clear_lines, make_model
from tests.engines.servers import installed_python, vllm_server
from tests.real_model import real_encoder, real_model
from workers.remote.sizes import ByteSizes, TokenSizes

pytestmark = [pytest.mark.engines, pytest.mark.long, pytest.mark.timeout(1800)]

NUM_LINES = 100
"""Of each kind of model."""
CONTEXT = 512
NEAR = 0.02
"""The lead of a token that fp32 of two engines may decide differently, in a model with bf16 weights."""
_OPTIONS = ("--dtype", "float32", "--max-model-len", str(CONTEXT), "--max-num-seqs", "16")
_TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    installed_python("vllm")


@pytest.fixture(scope="module", params=KINDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp(request.param)
    path = make_model(folder / "model", request.param)
    with vllm_server(path, *_OPTIONS, *_TOOLS, name=request.param, log=folder / "log") as url:
        yield path, url


@pytest.mark.parametrize("has_tokenizer", [True, False])
@pytest.mark.parametrize("is_chat", [True, False])
def test_greedy_answers_are_those_of_our_engine(
    served: tuple[Path, str], is_chat: bool, has_tokenizer: bool, connect: Connect, submit_valid: Submit
) -> None:
    path, url = served
    lines = [line for line in clear_lines(path, NUM_LINES) if ("messages" in line.body) is is_chat]
    sizes = TokenSizes(AutoTokenizer.from_pretrained(path), max_model_len=CONTEXT) if has_tokenizer else None
    answers = run_all(connect, url, submit_valid, [line.body for line in lines], sizes=sizes)
    found = [ClearLine(body=line.body, **read(answer)) for line, answer in zip(lines, answers, strict=True)]
    assert sum(one == two for one, two in zip(found, lines, strict=True)) == len(lines)


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.mark.parametrize("served", ["llama"], indirect=True)
def test_every_feature_gives_a_valid_answer(served: tuple[Path, str], connect: Connect, submit_valid: Submit) -> None:
    _, url = served
    hello = {"model": "demo", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 40, "temperature": 0.0}
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    asked: list[dict[str, Any]] = [
        {"n": 2, "temperature": 1.0, "seed": 3},
        {"logprobs": True, "top_logprobs": 2, "max_tokens": 3},
        {"response_format": schema},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}, "max_tokens": 200},
        {"tools": [TOOL], "tool_choice": "required", "max_tokens": 200},
        {"structured_outputs": {"choice": ["alpha", "beta"]}},
        {"structured_outputs": {"regex": "[0-9]{3}"}},
        {"stop": ["e", "a", "o"]},
        {"min_tokens": 5, "max_tokens": 5, "bad_words": ["x"], "top_k": 3, "min_p": 0.1, "repetition_penalty": 1.1},
        {"messages": [{"role": "user", "content": "word " * 600}]},
    ]
    answers = run_all(connect, url, submit_valid, [hello | more for more in asked])
    two, scored, formed, named, required, chosen, three, stopped, limited = map(
        ChatCompletion.model_validate, answers[:-1]
    )
    assert [choice.index for choice in two.choices] == [0, 1]
    assert scored.choices[0].logprobs is not None
    assert [len(each.top_logprobs) for each in scored.choices[0].logprobs.content or ()] == [2, 2, 2]
    assert json.loads(formed.choices[0].message.content or "")["a"] in ("x", "y")
    for answer in (named, required):
        calls = answer.choices[0].message.tool_calls or []
        assert [type(call) for call in calls] == [ChatCompletionMessageFunctionToolCall]
        assert all(json.loads(call.function.arguments)["a"] in ("x", "y") for call in calls if call.type == "function")
    assert chosen.choices[0].message.content in ("alpha", "beta")
    assert (three.choices[0].message.content or "").isdecimal()
    assert not set("eao") & set(stopped.choices[0].message.content or "")
    assert limited.usage is not None
    assert limited.usage.completion_tokens == 5
    assert answers[-1]["error"]["code"] == "context_length_exceeded"


def test_a_real_model_differs_from_our_engine_only_where_two_tokens_tie(
    tmp_path: Path, connect: Connect, submit_valid: Submit
) -> None:
    path = copy_model(tmp_path / "model", real_model())
    llm = LLM(path, dtype="float32", max_model_len=CONTEXT)
    prompts = [f"The capital of {country} is" for country in ("France", "Peru", "Chad", "Japan", "Italy", "Cuba")]
    outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=24, logprobs=2))
    with vllm_server(path, *_OPTIONS, name="smollm2", log=tmp_path / "log") as url:
        bodies = [{"model": "demo", "prompt": text, "max_tokens": 24, "temperature": 0.0} for text in prompts]
        answers = run_all(connect, url, submit_valid, bodies)
    for output, answer in zip(outputs, answers, strict=True):
        own = output.outputs[0]
        theirs = llm.tokenizer.encode(text_of(answer), add_special_tokens=False)
        place = next(
            (at for at, pair in enumerate(zip(own.token_ids, theirs, strict=False)) if pair[0] != pair[1]), None
        )
        if place is not None:
            assert own.logprobs is not None
            first, second = sorted((one.logprob for one in own.logprobs[place].values()), reverse=True)[:2]
            assert first - second < NEAR


def test_vectors_are_those_of_our_encoder(tmp_path: Path, connect: Connect, submit_valid: Submit) -> None:
    path = real_encoder()
    texts = ["A dog barks.", "Ein Hund bellt.", "Rates rise", "x", "word " * 120]
    with vllm_server(path, "--runner", "pooling", "--dtype", "float32", name="minilm", log=tmp_path / "log") as url:
        bodies: list[dict[str, Any]] = [
            {"model": "demo", "input": texts},
            {"model": "demo", "input": texts[0], "dimensions": 8},
        ]
        whole, short = run_all(connect, url, submit_valid, bodies, sizes=ByteSizes(max_model_len=256))
    embedder = Embedder(path)
    vectors = [one.embedding for one in CreateEmbeddingResponse.model_validate(whole).data]
    assert np.abs(np.array(vectors) - embedder.embed(texts).vectors).max() < 1e-3
    cut = embedder.shorten(embedder.embed(texts[:1]).vectors[0], 8)
    assert np.abs(np.array(short["data"][0]["embedding"]) - cut).max() < 1e-3
