"""Bodies of lines become token ids, or an error that names the parameter."""

from typing import Any

import pytest

from engine import params as engine_params
from jobs import body_checks
from jobs.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from jobs.body_checks import BodyError
from jobs.lines import InputLine
from workers.prompts import PreparedLine, PromptMaker

CONTEXT = 64


def prepare(tokenizer: Any, body: dict[str, Any], *, endpoint: str = CHAT_ENDPOINT, line_no: int = 0) -> PreparedLine:
    line = InputLine(line_no=line_no, custom_id="a", model="demo", body={"model": "demo", **body})
    return PromptMaker(tokenizer, max_model_len=CONTEXT).prepare(line, endpoint=endpoint, batch_id="batch_1")


def chat(text: str, **body: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **body}


def test_a_conversation_goes_through_the_template_with_exactly_one_bos(tokenizer: Any) -> None:
    (prompt,) = prepare(tokenizer, chat("Hello", max_tokens=4)).prompts
    assert prompt[0] == tokenizer.bos_token_id
    assert prompt.count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(prompt).endswith("<|assistant|>")


def test_a_text_prompt_and_its_token_ids_are_the_same_prompt(tokenizer: Any) -> None:
    (as_text,) = prepare(tokenizer, {"prompt": "Total 12"}, endpoint=COMPLETION_ENDPOINT).prompts
    (as_ids,) = prepare(tokenizer, {"prompt": as_text}, endpoint=COMPLETION_ENDPOINT).prompts
    assert as_ids == as_text == tokenizer.encode("Total 12")


def test_several_prompts_of_one_line_stay_in_order(tokenizer: Any) -> None:
    prompts = prepare(tokenizer, {"prompt": ["one", "two", "three"]}, endpoint=COMPLETION_ENDPOINT).prompts
    assert list(prompts) == [tokenizer.encode(text) for text in ("one", "two", "three")]


def test_a_seed_is_derived_from_batch_and_line_where_none_is_given(tokenizer: Any) -> None:
    first, again = (prepare(tokenizer, chat("Hi", max_tokens=4)).params.seed for _ in range(2))
    other = prepare(tokenizer, chat("Hi", max_tokens=4), line_no=1).params.seed
    assert first == again != other
    assert prepare(tokenizer, chat("Hi", max_tokens=4, seed=0)).params.seed == 0


@pytest.mark.parametrize(("num_words", "max_tokens", "code"), [(200, 1, "context_length_exceeded"), (0, 4, None)])
def test_a_prompt_that_leaves_no_room_is_refused_with_the_numbers(
    tokenizer: Any, num_words: int, max_tokens: int, code: str | None
) -> None:
    body = chat("word " * num_words, max_tokens=max_tokens)
    if code is None:
        assert prepare(tokenizer, body).params.max_tokens == max_tokens
        return
    with pytest.raises(BodyError, match=f"context is {CONTEXT}") as caught:
        prepare(tokenizer, body)
    assert (caught.value.param, caught.value.code) == ("messages", code)


def test_max_tokens_up_to_the_context_is_taken_and_one_more_is_refused(tokenizer: Any) -> None:
    (prompt,) = prepare(tokenizer, chat("Hi", max_tokens=1)).prompts
    room = CONTEXT - len(prompt)
    assert prepare(tokenizer, chat("Hi", max_tokens=room)).params.max_tokens == room
    with pytest.raises(BodyError, match=f"Lower max_tokens to {room}") as caught:
        prepare(tokenizer, chat("Hi", max_tokens=room + 1))
    assert (caught.value.param, caught.value.code) == ("max_tokens", "context_length_exceeded")


def test_without_max_tokens_the_answer_may_fill_the_context(tokenizer: Any) -> None:
    assert prepare(tokenizer, chat("Hi")).params.max_tokens is None


def test_an_empty_prompt_is_refused(tokenizer: Any) -> None:
    class NoTokens:
        def encode(self, text: str) -> list[int]:
            return []

    with pytest.raises(BodyError, match="prompt is empty"):
        prepare(NoTokens(), {"prompt": "x"}, endpoint=COMPLETION_ENDPOINT)


def test_what_the_template_refuses_is_the_lines_error(tokenizer: Any) -> None:
    class Strict:
        def apply_chat_template(self, *_: Any, **__: Any) -> Any:
            raise ValueError("roles must alternate")

    with pytest.raises(BodyError, match="roles must alternate") as caught:
        prepare(Strict(), chat("Hi"))
    assert caught.value.param == "messages"


def test_bodies_and_engine_agree_on_the_limits() -> None:
    assert body_checks.MAX_N == engine_params.MAX_N
    assert body_checks.MAX_LOGPROBS == engine_params.MAX_LOGPROBS
    assert body_checks.MAX_SEED == engine_params.MAX_SEED
