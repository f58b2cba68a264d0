"""From tokens to the answer of a line: collects choices, finds stop strings, builds the body. No engine, no SQL."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.messages import FinishReason, TokenDelta, TokenLogprobs
from engine.params import SamplingParams
from engine.text import TextStream
from jobs.bodies import CHAT_ENDPOINT
from jobs.responses import (
    GeneratedChoice,
    TokenLogprob,
    Usage,
    chat_completion_body,
    text_completion_body,
)
from workers.prompts import PreparedLine

_STOP, _LENGTH = "stop", "length"


class _Choice:
    """One sequence as it grows. Without stop strings its text is decoded once, at the end."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._params = params
        self.clear()

    def clear(self) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: str | None = None
        self.ends_with_stop_token = False
        self._stream = TextStream(self._tokenizer, self._prompt, self._params)

    def push(self, delta: TokenDelta) -> None:
        """Take new tokens; with stop strings one by one, so that none after a stop string is counted."""
        self.ends_with_stop_token = delta.finish_reason is FinishReason.STOP
        for position, token_id in enumerate(delta.token_ids):
            self.token_ids.append(token_id)
            if delta.logprobs is not None:
                self.logprobs.append(delta.logprobs[position])
            if self._params.stop and self._finds_stop(token_id, is_last=position == len(delta.token_ids) - 1):
                self.finish_reason = _STOP
                return
        if delta.finish_reason is not None:
            self.finish_reason = _STOP if self.ends_with_stop_token else _LENGTH

    def text(self) -> str:
        """Return the whole text; the sequence is finished."""
        if not self._params.stop:
            self._stream.push(self.token_ids, ends_with_stop_token=self.ends_with_stop_token)
        self._stream.finish()
        return self._stream.text

    def shown_token_ids(self) -> list[int]:
        """Return the tokens that are text: all but the stop or end-of-sequence token that ended them."""
        return self.token_ids[:-1] if self.ends_with_stop_token else self.token_ids

    def _finds_stop(self, token_id: int, *, is_last: bool) -> bool:
        self._stream.push([token_id], ends_with_stop_token=is_last and self.ends_with_stop_token)
        return self._stream.matched_stop is not None


@dataclass(slots=True)
class PromptRun:
    """Owner of one engine request: the n choices of one prompt. Called by the engine host's reader thread."""

    choices: list[_Choice]
    on_done: Callable[["PromptRun"], None]
    request_id: int | None = None
    num_cached_tokens: int = 0
    error: str | None = None
    is_done: bool = False
    stopped_early: bool = False  # by a stop string: the engine still runs it and is to be told
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, delta: TokenDelta) -> None:
        with self._lock:
            if self.is_done:
                return
            if delta.error is not None:
                self.error = delta.error
            else:
                self._take_tokens(delta)
            self.is_done = self.error is not None or all(choice.finish_reason for choice in self.choices)
        if self.is_done:
            self.on_done(self)

    def start_over(self) -> None:
        with self._lock:
            self.num_cached_tokens = 0
            if not self.is_done:
                for choice in self.choices:
                    choice.clear()

    def _take_tokens(self, delta: TokenDelta) -> None:
        choice = self.choices[delta.index]
        if choice.finish_reason is not None:
            return  # tokens that were under way when its stop string was found
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        choice.push(delta)
        if choice.finish_reason is not None and delta.finish_reason is None:
            self.stopped_early = True


class LineRun:
    """One line while it is in the engine: a PromptRun for each of its prompts."""

    def __init__(self, prepared: PreparedLine, tokenizer: Any, *, on_done: Callable[["LineRun"], None]) -> None:
        self.prepared = prepared
        self._on_done = on_done
        self._lock = threading.Lock()
        self._num_open = len(prepared.prompts)
        self.prompt_runs = [
            PromptRun(
                [_Choice(tokenizer, prompt, prepared.params) for _ in range(prepared.params.n)], self._prompt_done
            )
            for prompt in prepared.prompts
        ]

    @property
    def error(self) -> str | None:
        return next((run.error for run in self.prompt_runs if run.error is not None), None)

    @property
    def unfinished_request_ids(self) -> list[int]:
        """Return the engine requests that are to be aborted when this line is given up or stopped early."""
        return [
            run.request_id
            for run in self.prompt_runs
            if run.request_id is not None and (not run.is_done or run.stopped_early)
        ]

    def _prompt_done(self, _: PromptRun) -> None:
        with self._lock:
            self._num_open -= 1
            is_last = self._num_open == 0
        if is_last:
            self._on_done(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response body of a line and what it cost."""

    body: dict[str, Any]
    usage: Usage


class AnswerMaker:
    """Builds response bodies under one model's served name."""

    def __init__(self, tokenizer: Any, *, model: str) -> None:
        self._tokenizer = tokenizer
        self._model = model
        self._pieces: dict[int, tuple[str, bytes]] = {}

    def make(self, run: LineRun, *, response_id: str, created: int) -> Answer:
        """Build the answer of a finished line; `created` is in Unix seconds."""
        choices = [choice for prompt_run in run.prompt_runs for choice in prompt_run.choices]
        usage = Usage(
            prompt_tokens=run.prepared.num_prompt_tokens,
            completion_tokens=sum(len(choice.token_ids) for choice in choices),
            cached_tokens=sum(prompt_run.num_cached_tokens for prompt_run in run.prompt_runs),
        )
        build = chat_completion_body if run.prepared.endpoint == CHAT_ENDPOINT else text_completion_body
        body = build(
            response_id,
            self._model,
            created=created,
            choices=[self._generated(choice, index) for index, choice in enumerate(choices)],
            usage=usage,
        )
        return Answer(body=body, usage=usage)

    def _generated(self, choice: _Choice, index: int) -> GeneratedChoice:
        assert choice.finish_reason is not None, "the line is finished"
        shown = choice.shown_token_ids()
        logprobs = None
        if choice.logprobs:
            logprobs = [self._logprob(*pair) for pair in zip(shown, choice.logprobs, strict=False)]
        return GeneratedChoice(
            index=index,
            text=choice.text(),
            finish_reason=choice.finish_reason,
            logprobs=logprobs,
        )

    def _logprob(self, token_id: int, given: TokenLogprobs) -> TokenLogprob:
        top = [
            self._one_logprob(other_id, logprob)
            for other_id, logprob in zip(given.top_token_ids, given.top_logprobs, strict=True)
        ]
        return self._one_logprob(token_id, given.logprob, top)

    def _one_logprob(self, token_id: int, logprob: float, top: Sequence[TokenLogprob] = ()) -> TokenLogprob:
        piece = self._pieces.get(token_id)
        if piece is None:
            piece = self._pieces[token_id] = token_piece(self._tokenizer, token_id)
        return TokenLogprob(token=piece[0], logprob=logprob, token_bytes=piece[1], top=top)


def token_piece(tokenizer: Any, token_id: int) -> tuple[str, bytes]:
    """Return a token's text and its bytes, which differ when it holds only a part of a character.

    Knows the two spellings of partial characters: byte-level BPE (GPT-2's table of 256 printable characters) and byte
    fallback (`<0x0A>`).
    """
    text: str = tokenizer.decode([token_id], skip_special_tokens=False)
    if "\ufffd" not in text:
        return text, text.encode()
    spelled: str = tokenizer.convert_ids_to_tokens(token_id)
    if spelled.startswith("<0x") and spelled.endswith(">"):
        return text, bytes([int(spelled[3:-1], 16)])
    table = _byte_level_table()
    if all(character in table for character in spelled):
        return text, bytes(table[character] for character in spelled)
    return text, text.encode()


def _byte_level_table() -> dict[str, int]:
    """Return GPT-2's table backwards: printable Latin-1 stands for itself, the other bytes for U+0100 upwards."""
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in itself)
    return {chr(byte): byte for byte in itself} | {chr(0x100 + place): byte for place, byte in enumerate(others)}
