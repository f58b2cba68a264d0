"""The marks of thoughts in a model's chat template, and where a prompt ends: before thoughts, inside or behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from engine.thoughts import ThoughtMarks, Thoughts


class PromptEnd(StrEnum):
    """Where a prompt ends."""

    BEFORE = "before"
    """The answer may begin with thoughts."""
    INSIDE = "inside"
    BEHIND = "behind"
    """The answer has no thoughts."""


class MarkTokenizer(Protocol):
    """The methods of a transformers tokenizer that are needed here."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateMarks:
    """A template's marks, as text and as tokens."""

    begin: str
    end: str
    closing: str
    """What a template writes behind the opening mark to skip the thoughts, or to skip them from the start."""
    tokens: ThoughtMarks
    lead: tuple[int, ...] = ()
    """The token of a line end that the template writes before the opening mark; none if it writes no such."""

    def prompt_end(self, rendered: str, *, continues: bool) -> PromptEnd:
        """Return where a rendered prompt ends; one that `continues` ends with the text of a message.

        Only the template and an assistant's own text write marks, so no other text is taken for one.
        """
        if continues:
            return PromptEnd.INSIDE if rendered.rfind(self.begin) > rendered.rfind(self.end) else PromptEnd.BEHIND
        written = rendered.rstrip()
        if written.endswith(self.begin.rstrip()):
            return PromptEnd.INSIDE
        return PromptEnd.BEHIND if written.endswith(self.closing.strip()) else PromptEnd.BEFORE

    def thoughts(self, rendered: str, end: PromptEnd, *, budget: int | None) -> Thoughts | None:
        """Return the thoughts of an output behind a prompt that ends there; None if it has none."""
        if end is PromptEnd.BEHIND:
            return None
        lead = self.lead if end is PromptEnd.BEFORE and not rendered.endswith("\n") else ()
        return Thoughts(marks=self.tokens, is_open=end is PromptEnd.INSIDE, budget=budget, lead=lead)


def marks_of(template: str, tokenizer: MarkTokenizer) -> TemplateMarks | None:
    """Return the marks that a template writes or removes; None if it has none that are tokens of the model."""
    token_ids = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items()}
    return next((marks for find in _FINDERS if (marks := find(template, tokenizer, token_ids)) is not None), None)


_Finder = Callable[[str, MarkTokenizer, Mapping[str, int]], TemplateMarks | None]


def _tags(begin: str, end: str, *, title: str = "") -> _Finder:
    """Find two tokens; the model writes the `title` behind the first."""

    def find(template: str, tokenizer: MarkTokenizer, token_ids: Mapping[str, int]) -> TemplateMarks | None:
        if not (begin in template or end in template) or not {begin, end} <= token_ids.keys():
            return None
        tokens = ThoughtMarks(
            begin=(token_ids[begin],),
            end=token_ids[end],
            title=tuple(tokenizer.encode(title, add_special_tokens=False)) if title else (),
        )
        return TemplateMarks(
            begin=begin + title,
            end=end,
            closing=f"\n{end}\n\n",
            tokens=tokens,
            lead=_lead(template, begin, tokenizer),
        )

    return find


def _lead(template: str, begin: str, tokenizer: MarkTokenizer) -> tuple[int, ...]:
    """Return the token of a line end if a template writes one before the opening mark."""
    if f"\n{begin}" not in template and f"\\n{begin}" not in template:
        return ()
    line_end = tuple(tokenizer.encode("\n", add_special_tokens=False))
    return line_end if len(line_end) == 1 else ()


_HEADER = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")


def _channels(template: str, tokenizer: MarkTokenizer, token_ids: Mapping[str, int]) -> TemplateMarks | None:
    """Find gpt-oss' channels: thoughts are messages of the channel analysis, the answer is one of the channel final."""
    if "<|channel|>analysis" not in template or not set(_HEADER) <= token_ids.keys():
        return None
    start, channel, message, end = (token_ids[mark] for mark in _HEADER)

    def words(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    bare = (channel, *words("final"), message)
    tokens = ThoughtMarks(
        begin=(channel, *words("analysis"), message), end=end, bare=bare, bridge=(start, *words("assistant"), *bare)
    )
    return TemplateMarks(
        begin="<|channel|>analysis<|message|>",
        end="<|end|>",
        closing="<|channel|>final<|message|>",
        tokens=tokens,
    )


_FINDERS: tuple[_Finder, ...] = (
    _channels,
    _tags("<think>", "</think>"),
    _tags("[THINK]", "[/THINK]"),
    _tags("<seed:think>", "</seed:think>"),
    _tags("<|channel>", "<channel|>", title="thought\n"),
    _tags("<|inner_prefix|>", "<|inner_suffix|>"),
)
