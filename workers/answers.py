"""Builds the answer of a finished line from its tokens: text, log-probabilities, tool calls, usage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import Any

from engine.child_output import RequestProgress
from engine.outputs import FinishReason
from jobs.engines.engine import OWN_ENGINE, ServingEngine
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.responses import (
    GeneratedChoice,
    PromptLogprobs,
    TokenLogprob,
    Usage,
    chat_completion_body,
    text_completion_body,
)
from workers.line_run import LineRun
from workers.prompts import PreparedLine
from workers.shown_logprobs import ShownLogprobs
from workers.thinking.output import ThinkingOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response body of a line and what it cost."""

    body: dict[str, Any]
    usage: Usage
    is_truncated: bool
    """Whether one of its choices ended at a token limit."""


class AnswerMaker:
    """Builds response bodies under one model's served name."""

    def __init__(self, tokenizer: Any, *, model: str, engine: ServingEngine = OWN_ENGINE) -> None:
        self._shown = ShownLogprobs(tokenizer)
        self._model = model
        self._engine = engine.wire()

    def make(self, run: LineRun, *, response_id: str, created: int, adapter: str | None = None) -> Answer:
        """Build the answer of a finished line, under the name of its adapter if it has one.

        `created` is in Unix seconds.
        """
        thoughts = run.prepared.params.thoughts
        pairs = [
            (prompt, ThinkingOutput(choice, thoughts))
            for prompt in self._prompts(run)
            for choice in prompt.output.children
        ]
        usage = Usage(
            prompt_tokens=run.prepared.num_prompt_tokens,
            completion_tokens=sum(len(choice.whole.token_ids) for _, choice in pairs),
            reasoning_tokens=sum(choice.num_thoughts for _, choice in pairs),
            cached_tokens=sum(prompt_run.output.num_cached_tokens for prompt_run in run.prompt_runs),
        )
        build = chat_completion_body if run.prepared.endpoint == CHAT_ENDPOINT else text_completion_body
        body = build(
            response_id,
            adapter or self._model,
            created=created,
            choices=[
                self._with_calls(self._generated(*pair, index=index), pair[1], run.prepared)
                for index, pair in enumerate(pairs)
            ],
            usage=usage,
        )
        body["engine"] = self._engine
        if run.prepared.context is not None:
            body["context"] = run.prepared.context
        is_truncated = any(choice.whole.finish_reason == FinishReason.LENGTH for _, choice in pairs)
        return Answer(body=body, usage=usage, is_truncated=is_truncated)

    def _prompts(self, run: LineRun) -> list[_Prompt]:
        """Return what the answer takes from each prompt."""
        prepared, shown = run.prepared, self._shown
        echoes = prepared.echoes or [""] * len(prepared.prompts)
        prompts = []
        for token_ids, prompt_run, echo in zip(prepared.prompts, run.prompt_runs, echoes, strict=True):
            logprobs = prompt_run.output.prompt_logprobs
            echoed = logprobs if prepared.echoes and prepared.params.logprobs is not None else None
            count = prepared.num_prompt_logprobs
            prompts.append(
                _Prompt(
                    output=prompt_run.output,
                    echo=echo,
                    echoed=[] if echoed is None else shown.of_prompt(token_ids, echoed, prepared.params.logprobs or 0),
                    ranked=None if logprobs is None or count is None else shown.ranked(token_ids, logprobs, count),
                )
            )
        return prompts

    def _generated(self, prompt: _Prompt, choice: ThinkingOutput, *, index: int) -> GeneratedChoice:
        whole = choice.whole
        assert whole.finish_reason is not None, "the line is finished"
        logprobs = None
        if whole.has_logprobs:
            logprobs = [*prompt.echoed, *self._shown.of_tokens(*choice.answer_logprobs)]
            if choice.reasoning is not None:  # the answer's text has no white space at its start either
                logprobs = list(dropwhile(lambda one: not one.token.strip(), logprobs))
        return GeneratedChoice(
            index=index,
            text=prompt.echo + choice.answer_text(),
            finish_reason=whole.finish_reason,
            logprobs=logprobs,
            prompt_logprobs=prompt.ranked,
            reasoning=choice.reasoning,
        )

    @staticmethod
    def _with_calls(generated: GeneratedChoice, choice: ThinkingOutput, prepared: PreparedLine) -> GeneratedChoice:
        """Move the tool calls of an output out of its text, up to the first stop string."""
        if prepared.calls is None:
            return generated
        # Some models mark calls with special tokens, which the plain text leaves out.
        parsed = prepared.calls.read(choice.answer_text(has_special_tokens=True))
        if parsed is None:
            return generated
        text, calls = parsed
        return replace(generated, text=text, tool_calls=calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prompt:
    """The part of the answer that the choices of one prompt share."""

    output: RequestProgress
    echo: str
    echoed: list[TokenLogprob]
    ranked: PromptLogprobs | None
