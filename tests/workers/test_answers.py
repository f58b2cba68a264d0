"""Tests of turning tokens into answers: text, stops, usage, log-probabilities."""

from __future__ import annotations

import gc
import weakref
from array import array
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from engine.params import SamplingParams
from engine.process.messages import FinishReason, TokenDelta, TokenLogprobs
from jobs.lines.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from workers.answers import AnswerMaker
from workers.line_run import LineRun
from workers.prompts import PreparedLine
from workers.shown_logprobs import token_piece
from workers.tool_calls.forms import CallForm
from workers.tool_calls.output import CallReader


def start(
    tokenizer: Any,
    *,
    prompts: int = 1,
    endpoint: str = CHAT_ENDPOINT,
    echoes: tuple[str, ...] | None = None,
    num_prompt_logprobs: int | None = None,
    calls: CallReader | None = None,
    **params: Any,
) -> tuple[LineRun, list[Any]]:
    prepared = PreparedLine(
        max_model_len=512,
        line_no=0,
        custom_id="a",
        endpoint=endpoint,
        prompts=tuple(array("i", [1, 5, 6]) for _ in range(prompts)),
        params=SamplingParams(**params),
        echoes=echoes,
        num_prompt_logprobs=num_prompt_logprobs,
        calls=calls,
    )
    done: list[LineRun] = []
    run = LineRun(prepared, tokenizer, batch_id="batch_1", on_done=done.append, on_stopped=lambda *_: None)
    for request_id, prompt_run in enumerate(run.prompt_runs):
        prompt_run.request_id = request_id
    return run, done


def feed(run: LineRun, token_ids: list[int], *, prompt: int = 0, index: int = 0, end: FinishReason | None) -> None:
    """Send the tokens one delta each, as the engine does."""
    for position, token_id in enumerate(token_ids):
        is_last = position == len(token_ids) - 1
        run.prompt_runs[prompt].receive(
            TokenDelta(
                request_id=prompt,
                index=index,
                token_ids=[token_id],
                finish_reason=end if is_last else None,
                num_cached_tokens=2,
            )
        )


def answer(tokenizer: Any, run: LineRun) -> dict[str, Any]:
    return AnswerMaker(tokenizer, model="demo").make(run, response_id="chatcmpl-1", created=7).body


def test_a_line_that_has_ended_is_freed_without_a_garbage_collection(tokenizer: Any) -> None:
    gc.disable()
    try:
        run, done = start(tokenizer, prompts=2)
        for prompt in range(2):
            feed(run, [5], prompt=prompt, end=FinishReason.STOP)
        assert done == [run]
        known = weakref.ref(run)
        done.clear()
        del run
        assert known() is None
    finally:
        gc.enable()


def test_a_finished_line_has_its_text_and_usage_without_the_stop_token(tokenizer: Any) -> None:
    run, done = start(tokenizer, max_tokens=50)
    token_ids = tokenizer.encode("Total: 12.50", add_special_tokens=False)
    feed(run, [*token_ids, tokenizer.eos_token_id], end=FinishReason.STOP)
    assert done == [run]
    body = answer(tokenizer, run)
    assert body["choices"][0]["message"]["content"] == "Total: 12.50"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": len(token_ids) + 1,
        "total_tokens": len(token_ids) + 4,
        "prompt_tokens_details": {"cached_tokens": 2},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def test_what_the_first_choice_computes_and_the_others_share_was_not_cached(tokenizer: Any) -> None:
    run, done = start(tokenizer, n=2, max_tokens=1)
    for index, num_cached_tokens in ((1, 48), (0, 16)):
        delta = TokenDelta(request_id=0, index=index, token_ids=[5], num_cached_tokens=num_cached_tokens)
        delta.finish_reason = FinishReason.LENGTH
        run.prompt_runs[0].receive(delta)
    assert done == [run]
    assert answer(tokenizer, run)["usage"]["prompt_tokens_details"] == {"cached_tokens": 16}


def test_a_line_cut_at_its_limit_says_length(tokenizer: Any) -> None:
    run, _ = start(tokenizer, max_tokens=2)
    feed(run, tokenizer.encode("ab", add_special_tokens=False), end=FinishReason.LENGTH)
    assert answer(tokenizer, run)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_ends_the_line_and_later_tokens_do_not_count(tokenizer: Any, include: bool) -> None:
    run, done = start(tokenizer, max_tokens=50, stop=["TOP"], include_stop_str_in_output=include)
    token_ids = tokenizer.encode("one STOP two three", add_special_tokens=False)
    feed(run, token_ids, end=None)
    assert done == [run]
    assert run.request_ids_in_engine == [0], "the engine is still running it"
    body = answer(tokenizer, run)
    assert body["choices"][0]["message"]["content"] == ("one STOP" if include else "one S")
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < len(token_ids)


def test_a_stop_token_after_a_stop_string_hides_no_token_before_it(tokenizer: Any) -> None:
    run, _ = start(tokenizer, max_tokens=50, stop=["TOP"], include_stop_str_in_output=True, logprobs=0)
    token_ids = [*tokenizer.encode("STOP", add_special_tokens=False), tokenizer.eos_token_id]
    logprobs = [TokenLogprobs(logprob=-0.5, rank=1, top_token_ids=[], top_logprobs=[]) for _ in token_ids]
    delta = TokenDelta(request_id=0, token_ids=token_ids, logprobs=logprobs, finish_reason=FinishReason.STOP)
    run.prompt_runs[0].receive(delta)
    (choice,) = answer(tokenizer, run)["choices"]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == choice["message"]["content"] == "STOP"


def test_a_stop_string_that_only_the_end_completes_is_the_reason_of_it(tokenizer: Any) -> None:
    run, _ = start(tokenizer, max_tokens=50, stop=["\ufffd"])
    feed(run, tokenizer.encode("a漢", add_special_tokens=False)[:-1], end=FinishReason.LENGTH)
    (choice,) = answer(tokenizer, run)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("a", "stop")


@pytest.mark.parametrize("stop", [[], ["TOP"]])
def test_an_answer_made_twice_says_the_same(tokenizer: Any, stop: list[str]) -> None:
    run, _ = start(tokenizer, max_tokens=50, stop=stop)
    feed(run, tokenizer.encode("one two", add_special_tokens=False), end=FinishReason.LENGTH)
    first, second = answer(tokenizer, run), answer(tokenizer, run)
    assert first == second
    assert first["choices"][0]["message"]["content"] == "one two"


def test_the_engine_hears_at_once_of_a_choice_that_a_stop_string_ended(tokenizer: Any) -> None:
    run, done = start(tokenizer, n=2, max_tokens=50, stop=["TOP"])
    stopped: list[tuple[int, int]] = []
    run.prompt_runs[0].on_stopped = lambda *child: stopped.append(child)
    feed(run, tokenizer.encode("one STOP two three", add_special_tokens=False), index=1, end=None)
    run.prompt_runs[0].receive(TokenDelta(request_id=0, index=1, finish_reason=FinishReason.ABORT))
    assert (stopped, done) == ([(0, 1)], [])
    feed(run, tokenizer.encode("one two", add_special_tokens=False), index=0, end=FinishReason.LENGTH)
    assert (stopped, done) == ([(0, 1)], [run])
    assert [choice["finish_reason"] for choice in answer(tokenizer, run)["choices"]] == ["length", "stop"]


def test_choices_of_several_prompts_are_numbered_as_openai_does(tokenizer: Any) -> None:
    run, done = start(tokenizer, prompts=2, endpoint=COMPLETION_ENDPOINT, n=2, max_tokens=5)
    words = {(0, 0): "a", (0, 1): "b", (1, 0): "c", (1, 1): "d"}
    for (prompt, index), word in reversed(words.items()):
        assert done == []
        feed(
            run,
            tokenizer.encode(word, add_special_tokens=False),
            prompt=prompt,
            index=index,
            end=FinishReason.LENGTH,
        )
    assert done == [run]
    body = answer(tokenizer, run)
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == list(enumerate("abcd"))
    assert body["usage"]["prompt_tokens"] == 6


def test_a_line_that_starts_over_forgets_what_it_had(tokenizer: Any) -> None:
    run, _ = start(tokenizer, max_tokens=9)
    feed(run, tokenizer.encode("lost", add_special_tokens=False), end=None)
    run.prompt_runs[0].start_over()
    feed(run, tokenizer.encode("kept", add_special_tokens=False), end=FinishReason.LENGTH)
    assert answer(tokenizer, run)["choices"][0]["message"]["content"] == "kept"


def test_an_error_of_one_prompt_ends_the_line(tokenizer: Any) -> None:
    run, done = start(tokenizer, prompts=1, max_tokens=9)
    run.prompt_runs[0].receive(TokenDelta(request_id=0, finish_reason=FinishReason.ERROR, error="does not fit"))
    assert done == [run]
    assert run.error == "does not fit"


def test_log_probabilities_come_with_text_bytes_and_alternatives(tokenizer: Any) -> None:
    run, _ = start(tokenizer, max_tokens=1, logprobs=1)
    (token_id,) = tokenizer.encode("T", add_special_tokens=False)
    other_id = tokenizer.encode("U", add_special_tokens=False)[0]
    logprobs = TokenLogprobs(logprob=-0.5, rank=2, top_token_ids=[other_id], top_logprobs=[-0.25])
    run.prompt_runs[0].receive(
        TokenDelta(request_id=0, token_ids=[token_id], logprobs=[logprobs], finish_reason=FinishReason.LENGTH)
    )
    (entry,) = answer(tokenizer, run)["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("T", -0.5, [84])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [("U", -0.25)]


PROMPT_LOGPROBS = [
    TokenLogprobs(logprob=-3.0, rank=7, top_token_ids=[8, 9], top_logprobs=[-0.5, -1.0]),
    TokenLogprobs(logprob=-0.25, rank=1, top_token_ids=[6, 9], top_logprobs=[-0.25, -2.0]),
]


def give_prompt_logprobs(run: LineRun, token_ids: list[int]) -> None:
    own = [TokenLogprobs(logprob=-0.125, rank=1, top_token_ids=[5], top_logprobs=[-0.125]) for _ in token_ids]
    delta = TokenDelta(request_id=0, token_ids=token_ids, finish_reason=FinishReason.LENGTH)
    delta.logprobs, delta.prompt_logprobs = own or None, PROMPT_LOGPROBS
    run.prompt_runs[0].receive(delta)


def pieces(tokenizer: Any, *token_ids: int) -> list[str]:
    return [token_piece(tokenizer, token_id)[0] for token_id in token_ids]


@pytest.mark.parametrize("output", [[100], []])
def test_an_echo_is_the_prompt_before_the_text_with_its_log_probabilities(tokenizer: Any, output: list[int]) -> None:
    run, _ = start(
        tokenizer, endpoint=COMPLETION_ENDPOINT, echoes=("Once",), logprobs=1, prompt_logprobs=2, max_tokens=len(output)
    )
    give_prompt_logprobs(run, output)
    body = answer(tokenizer, run)
    (choice,) = body["choices"]
    assert choice["text"] == "Once" + tokenizer.decode(output)
    shown = choice["logprobs"]
    assert shown["tokens"] == pieces(tokenizer, 1, 5, 6, *output)
    assert shown["token_logprobs"] == [None, -3.0, -0.25, *[-0.125] * len(output)]
    best, second, third = pieces(tokenizer, 8, 5, 6)
    assert shown["top_logprobs"][:3] == [None, {best: -0.5, second: -3.0}, {third: -0.25}]
    assert shown["text_offset"][:2] == [0, len(pieces(tokenizer, 1)[0])]
    assert "prompt_logprobs" not in choice
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, len(output))


def test_an_echo_without_log_probabilities_is_text_alone(tokenizer: Any) -> None:
    run, _ = start(tokenizer, prompts=2, endpoint=COMPLETION_ENDPOINT, echoes=("One", "Two"), n=2, max_tokens=1)
    for prompt in range(2):
        for index in range(2):
            feed(run, [5], prompt=prompt, index=index, end=FinishReason.LENGTH)
    choices = answer(tokenizer, run)["choices"]
    assert [choice["text"][:3] for choice in choices] == ["One", "One", "Two", "Two"]
    assert all(choice["logprobs"] is None for choice in choices)


@pytest.mark.parametrize("endpoint", [CHAT_ENDPOINT, COMPLETION_ENDPOINT])
def test_log_probabilities_of_the_prompt_come_in_vllms_form(tokenizer: Any, endpoint: str) -> None:
    run, _ = start(tokenizer, endpoint=endpoint, num_prompt_logprobs=1, prompt_logprobs=1, max_tokens=1)
    give_prompt_logprobs(run, [5])
    body = answer(tokenizer, run)
    holder = body if endpoint == CHAT_ENDPOINT else body["choices"][0]
    first, second, third = holder["prompt_logprobs"]
    assert first is None
    best, own = pieces(tokenizer, 8, 5)
    assert second == {
        "8": {"logprob": -0.5, "rank": 1, "decoded_token": best},
        "5": {"logprob": -3.0, "rank": 7, "decoded_token": own},
    }
    assert list(third) == ["6"]


def test_the_bytes_of_a_character_split_over_tokens_join_to_it(tokenizer: Any) -> None:
    token_ids = tokenizer.encode("€", add_special_tokens=False)
    assert b"".join(token_piece(tokenizer, token_id)[1] for token_id in token_ids).strip() == "€".encode()


@pytest.fixture(scope="module")
def llama_2() -> Any:
    """Return a tokenizer whose decoder strips a leading space and joins bytes, as that of Llama 2 and Mistral 7B."""
    words = ["<unk>", "▁the", "the", "▁Hello", "a", "▁", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {word: token_id for token_id, word in enumerate(words)}
    model = models.BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>")
    backend = Tokenizer(model)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def test_a_byte_fallback_token_gives_its_byte(llama_2: Any) -> None:
    token_ids = llama_2.convert_tokens_to_ids(["<0xE2>", "<0x82>", "<0xAC>", "<0x0A>"])
    assert b"".join(token_piece(llama_2, token_id)[1] for token_id in token_ids) == "€\n".encode()


def test_the_tokens_join_to_the_text_where_the_decoder_strips_a_leading_space(llama_2: Any) -> None:
    token_ids = llama_2.convert_tokens_to_ids(["▁Hello", "▁the", "the", "▁", "▁the"])
    run, _ = start(llama_2, endpoint=COMPLETION_ENDPOINT, logprobs=2, max_tokens=5)
    likeliest = llama_2.convert_tokens_to_ids(["▁the", "the"])
    top = TokenLogprobs(logprob=-4.0, rank=9, top_token_ids=likeliest, top_logprobs=[-0.125, -3.0])
    delta = TokenDelta(request_id=0, token_ids=token_ids, logprobs=[top] * 5, finish_reason=FinishReason.LENGTH)
    run.prompt_runs[0].receive(delta)
    (choice,) = answer(llama_2, run)["choices"]
    shown = choice["logprobs"]
    assert shown["tokens"] == [" Hello", " the", "the", " ", " the"]
    assert "".join(shown["tokens"]) == choice["text"]
    assert shown["text_offset"] == [0, 6, 10, 13, 14]
    assert shown["top_logprobs"][0] == {" the": -0.125, "the": -3.0, " Hello": -4.0}


READER = CallReader(form=CallForm.HERMES, names=frozenset({"total"}), is_parallel=True)


def test_a_tool_call_becomes_a_call_with_an_id_that_stays_the_same(tokenizer: Any) -> None:
    bodies = []
    for _ in range(2):
        run, _ = start(tokenizer, calls=READER, max_tokens=200)
        text = '<tool_call>{"name": "total", "arguments": {"of": 7}}</tool_call>'
        token_ids = tokenizer.encode(text * 2, add_special_tokens=False)
        feed(run, [*token_ids, tokenizer.eos_token_id], end=FinishReason.STOP)
        bodies.append(answer(tokenizer, run))
    (choice,) = bodies[0]["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    first, second = choice["message"]["tool_calls"]
    assert first["type"] == "function"
    assert first["function"] == second["function"] == {"name": "total", "arguments": '{"of": 7}'}
    assert first["id"].startswith("call_")
    assert first["id"] != second["id"]
    assert bodies[0] == bodies[1]


def test_a_malformed_tool_call_stays_content(tokenizer: Any) -> None:
    run, _ = start(tokenizer, calls=READER, max_tokens=200)
    text = '<tool_call>{"name": "total", "arguments": {"of"'
    feed(run, tokenizer.encode(text, add_special_tokens=False), end=FinishReason.LENGTH)
    (choice,) = answer(tokenizer, run)["choices"]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert choice["finish_reason"] == "length"
