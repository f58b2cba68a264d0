"""Lines of models that think, prepared and answered by a stand-in that says what a test wants."""

from __future__ import annotations

from typing import Any

from engine.outputs import FinishReason, TokenDelta
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.reading import InputLine
from tests.workers.thinking.families import thinking_tokenizer
from workers.answers import Answer, AnswerMaker
from workers.line_run import LineRun
from workers.prompts import PreparedLine, PromptMaker

CONTEXT, VOCAB = 2048, 512


def prepare(name: str | Any, *, endpoint: str = CHAT_ENDPOINT, **body: Any) -> PreparedLine:
    """Prepare a line for a family, or for a tokenizer; without messages it asks one question."""
    tokenizer = thinking_tokenizer(name) if isinstance(name, str) else name
    if endpoint == CHAT_ENDPOINT:
        body = {"messages": [{"role": "user", "content": "What is due?"}]} | body
    line = InputLine(line_no=0, custom_id="a", model="demo", body={"model": "demo", **body})
    maker = PromptMaker(tokenizer, max_model_len=CONTEXT, vocab_size=VOCAB)
    return maker.prepare(line, endpoint=endpoint, batch_id="batch_1")


def prompt_text(name: str, **body: Any) -> str:
    (prompt,) = prepare(name, **body).prompts
    return str(thinking_tokenizer(name).decode(prompt))


def answered(name: str, output: str, *, end: FinishReason = FinishReason.STOP, **body: Any) -> Answer:
    """Return the answer to a line whose model says `output`, with its end-of-sequence token if it stops."""
    tokenizer = thinking_tokenizer(name)
    token_ids = tokenizer.encode(output, add_special_tokens=False)
    if end is FinishReason.STOP:
        token_ids.append(tokenizer.eos_token_id)
    return answered_with(name, token_ids, end=end, **body)


def answered_with(name: str, token_ids: list[int], *, end: FinishReason = FinishReason.STOP, **body: Any) -> Answer:
    """Return the answer to a line whose model writes these tokens."""
    tokenizer, prepared = thinking_tokenizer(name), prepare(name, **body)
    run = LineRun(prepared, tokenizer, batch_id="batch_1", on_done=lambda _: None, on_stopped=lambda *_: None)
    for place, token_id in enumerate(token_ids, start=1):
        reason = end if place == len(token_ids) else None
        run.prompt_runs[0].receive(TokenDelta(request_id=0, token_ids=[token_id], finish_reason=reason))
    return AnswerMaker(tokenizer, model="demo").make(run, response_id="chatcmpl-1", created=7)


def message_of(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = answer.body["choices"][0]["message"]
    return message


def reasoning_tokens(answer: Answer) -> int:
    return int(answer.body["usage"]["completion_tokens_details"]["reasoning_tokens"])
