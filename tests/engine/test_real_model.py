"""Tests of a real instruct model from one GGUF file: transformers' reading of it, and effects of real text."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import LLM, SamplingParams
from engine.models.weights import Checkpoint
from engine.outputs import RequestOutput
from engine.scheduling.request import NewRequest
from engine.speculation.prompt_lookup import PromptLookup
from engine.structured import StructuredOutput
from kernels.packed_linear import best_product
from tests.engine.builders import GivenDrafter, new_request
from tests.read_by_transformers import digest
from tests.real_model import read_by_transformers, real_model

pytestmark = [pytest.mark.comparison, pytest.mark.real_model, pytest.mark.long]

NUM_TOKENS = 20
QUESTIONS = ["What is the capital of France?", "Name the three primary colors.", "Write a line about the sea."]
TEXTS = [
    "Hello world",
    " 12345  tabs\tand\n\nlines ",
    "naïve größer 漢字 😀",
    "def f(x):\n    return x ** 2 # ok",
    "it's",
]
NOTICE = "Dear customer, your parcel number 4471 leaves our house on Monday morning and arrives on Wednesday at noon."


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


@pytest.fixture(scope="module")
def path() -> Path:
    return real_model()


@pytest.fixture(scope="module")
def oracle(path: Path) -> dict[str, Any]:
    chats = [chat(question) for question in QUESTIONS]
    return read_by_transformers(path, {"chats": chats, "texts": TEXTS, "num_tokens": NUM_TOKENS})


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, dtype="float32", max_model_len=512, num_kv_blocks=128, warm_up=False)


def test_every_weight_is_transformers(path: Path, oracle: dict[str, Any]) -> None:
    with Checkpoint(path, dtype=torch.float32) as checkpoint:
        got = {name: digest(tensor[...]) for name, tensor in checkpoint.tensors().items()}
    assert got == {name: value for name, value in oracle["weights"].items() if name != "lm_head.weight"}
    assert oracle["weights"]["lm_head.weight"] == got["model.embed_tokens.weight"]


def test_every_text_has_transformers_tokens(llm: LLM, oracle: dict[str, Any]) -> None:
    assert [llm.tokenizer.encode(text, add_special_tokens=False) for text in TEXTS] == oracle["token_ids"]
    assert [llm.tokenizer.decode(token_ids) for token_ids in oracle["token_ids"]] == TEXTS


def test_greedy_answers_are_transformers_token_for_token(llm: LLM, oracle: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    outputs = llm.chat([chat(question) for question in QUESTIONS], params)
    assert [output.prompt_token_ids for output in outputs] == oracle["prompts"]
    assert [output.outputs[0].token_ids for output in outputs] == oracle["outputs"]


def test_it_answers(llm: LLM) -> None:
    assert only(llm.chat(chat(QUESTIONS[0]), SamplingParams(temperature=0.0, max_tokens=20))) == (
        "The capital of France is Paris."
    )


def only(outputs: list[RequestOutput]) -> str:
    [output] = outputs
    assert output.outputs[0].error is None
    return output.outputs[0].text


def test_output_is_kept_to_a_schema(llm: LLM) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}, "country": {"enum": ["France", "Spain"]}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    params = SamplingParams(temperature=0.0, max_tokens=60, structured=StructuredOutput(json=schema))
    answer = json.loads(only(llm.chat(chat("Which city is the capital of France? Answer in JSON."), params)))
    assert answer == {"city": "Paris", "country": "France"}


def test_a_shared_beginning_is_found_in_the_prefix_cache(llm: LLM) -> None:
    questions = [f"{NOTICE * 3} What is the {what}?" for what in ("parcel's number", "day of arrival")]
    params = SamplingParams(temperature=0.0, max_tokens=12)
    [first] = llm.chat(chat(questions[0]), params)
    [second] = llm.chat(chat(questions[1]), params)
    [again] = llm.chat(chat(questions[0]), params)
    shared = sum(1 for _ in _common(first.prompt_token_ids, second.prompt_token_ids))
    assert second.num_cached_tokens == shared // 16 * 16 > 64
    assert again.num_cached_tokens == (len(again.prompt_token_ids) - 1) // 16 * 16
    assert again.outputs[0].token_ids == first.outputs[0].token_ids


def _common(one: list[int], other: list[int]) -> Iterator[int]:
    for left, right in zip(one, other, strict=False):
        if left != right:
            return
        yield left


def test_a_drained_request_goes_on_with_the_tokens_it_would_have_had(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    [whole] = llm.chat(chat(QUESTIONS[2]), params)
    tokens = whole.outputs[0].token_ids
    llm.engine.add(new_request(10**6, whole.prompt_token_ids, params=params, output_token_ids=tokens[:9]))
    rest: list[int] = []
    while llm.engine.has_work:
        rest += [token for delta in llm.engine.step() for token in delta.token_ids]
    assert rest == tokens[9:]


@pytest.fixture(params=["bfloat16", "float32"])
def exact(path: Path, request: pytest.FixtureRequest) -> LLM:
    """The same weights where the bits of a product follow no batch."""
    if best_product(getattr(torch, request.param)).unit is None:
        pytest.skip(f"this CPU's {request.param} products are oneDNN's, whose bits follow the batch")
    return LLM(path, dtype=request.param, max_model_len=512, num_kv_blocks=128, warm_up=False)


STORIES = [f"Write a short story about a fisherman who finds {number} coins." for number in range(3, 9)]


def new_stories(llm: LLM, so_far: dict[int, list[int]]) -> Iterator[NewRequest]:
    """Yield a request for each story, greedy and drawn by turns, to go on after what there is of it."""
    for index, story in enumerate(STORIES):
        prompt = llm.tokenizer.apply_chat_template(chat(story), add_generation_prompt=True, return_dict=False)
        params = SamplingParams(temperature=0.9 * (index % 2), seed=index, max_tokens=20 + index, ignore_eos=True)
        yield new_request(index, prompt, params=params, output_token_ids=so_far[index])


def run(llm: LLM, *, most_steps: int = 10**6) -> dict[int, list[int]]:
    """Take so many steps, then stop as a draining worker does; return what each request was given."""
    given: dict[int, list[int]] = defaultdict(list)
    while llm.engine.has_work and most_steps > 0:
        most_steps -= 1
        for delta in (*llm.engine.step(), *llm.engine.release()):
            given[delta.request_id] += delta.token_ids
    llm.engine.abort(range(len(STORIES)))
    while llm.engine.has_work:
        llm.engine.step()
    return given


def test_drained_requests_go_on_with_the_same_tokens_beside_others(exact: LLM) -> None:
    for request in new_stories(exact, defaultdict(list)):
        exact.engine.add(request)
    whole = run(exact)
    assert [len(whole[index]) for index in range(6)] == [20, 21, 22, 23, 24, 25]
    for request in new_stories(exact, defaultdict(list)):
        exact.engine.add(request)
    kept = run(exact, most_steps=9)
    assert all(0 < len(tokens) < 20 for tokens in kept.values())
    resumed: dict[int, list[int]] = {}
    for share in ({5, 0}, {1, 2, 3, 4}):  # other batches than before
        for request in reversed(list(new_stories(exact, kept))):
            if request.request_id in share:
                exact.engine.add(request)
        resumed |= run(exact)
    assert {index: kept[index] + resumed[index] for index in range(6)} == dict(whole)


def test_drafts_from_the_prompt_are_accepted_and_change_nothing(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    question = chat(f"Repeat this text word for word: {NOTICE}")
    params = SamplingParams(temperature=0.0, max_tokens=32)
    plain = only(llm.chat(question, params))
    lookup = PromptLookup(min_match=2, max_match=8)

    def guess(token_ids: list[int], room: int) -> list[int]:
        match = lookup.find(token_ids)
        return [] if match is None else token_ids[match.end : match.end + 6]

    monkeypatch.setattr(llm.engine.loop, "drafter", GivenDrafter(guess))
    num_steps = llm.stats().scheduler.num_steps
    [guessed] = llm.chat(question, params)
    num_steps = llm.stats().scheduler.num_steps - num_steps
    assert guessed.outputs[0].text == plain
    num_accepted = len(guessed.outputs[0].token_ids) - num_steps  # a step without drafts gives one token
    assert num_accepted >= 8, plain
