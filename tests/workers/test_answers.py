"""Tokens become answers: text, stops, usage, log-probabilities."""

from typing import Any

import pytest

from engine.messages import FinishReason, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from jobs.bodies import CHAT_ENDPOINT, COMPLETION_ENDPOINT
from jobs.lines import InputLine
from workers.answers import AnswerMaker, LineRun, token_piece
from workers.prompts import PreparedLine


def start(tokenizer: Any, *, prompts: int = 1, endpoint: str = CHAT_ENDPOINT, **params: Any) -> tuple[LineRun, list]:
    line = InputLine(line_no=0, custom_id="a", model="demo", body={})
    prepared = PreparedLine(
        line=line,
        endpoint=endpoint,
        prompts=tuple([1, 5, 6] for _ in range(prompts)),
        params=SamplingParams(**params),
    )
    done: list[LineRun] = []
    run = LineRun(prepared, tokenizer, on_done=done.append)
    for request_id, prompt_run in enumerate(run.prompt_runs):
        prompt_run.request_id = request_id
    return run, done


def feed(run: LineRun, token_ids: list[int], *, prompt: int = 0, index: int = 0, end: FinishReason | None) -> None:
    """Send the tokens one delta each, as the engine does."""
    for position, token_id in enumerate(token_ids):
        is_last = position == len(token_ids) - 1
        run.prompt_runs[prompt].take(
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
    }


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
    assert run.unfinished_request_ids == [0], "the engine is still running it"
    body = answer(tokenizer, run)
    assert body["choices"][0]["message"]["content"] == ("one STOP" if include else "one S")
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] < len(token_ids)


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
    run.prompt_runs[0].take(TokenDelta(request_id=0, finish_reason=FinishReason.ERROR, error="does not fit"))
    assert done == [run]
    assert run.error == "does not fit"


def test_log_probabilities_come_with_text_bytes_and_alternatives(tokenizer: Any) -> None:
    run, _ = start(tokenizer, max_tokens=1, logprobs=1)
    (token_id,) = tokenizer.encode("T", add_special_tokens=False)
    other_id = tokenizer.encode("U", add_special_tokens=False)[0]
    logprobs = TokenLogprobs(logprob=-0.5, rank=2, top_token_ids=[other_id], top_logprobs=[-0.25])
    run.prompt_runs[0].take(
        TokenDelta(request_id=0, token_ids=[token_id], logprobs=[logprobs], finish_reason=FinishReason.LENGTH)
    )
    (entry,) = answer(tokenizer, run)["choices"][0]["logprobs"]["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("T", -0.5, [84])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [("U", -0.25)]


def test_the_bytes_of_a_character_split_over_tokens_join_to_it(tokenizer: Any) -> None:
    token_ids = tokenizer.encode("€", add_special_tokens=False)
    assert b"".join(token_piece(tokenizer, token_id)[1] for token_id in token_ids).strip() == "€".encode()


def test_byte_fallback_tokens_give_their_byte() -> None:
    class Fallback:
        def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
            return "\ufffd"

        def convert_ids_to_tokens(self, token_id: int) -> str:
            return "<0xE2>"

    assert token_piece(Fallback(), 7)[1] == b"\xe2"
