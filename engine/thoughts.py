"""Thoughts in an output: the marks around them as tokens, a reader of outputs, and what may follow. No text, no torch.

Two kinds of marks: tags (`<think>…</think>`, `[THINK]…[/THINK]`), and channels, in which an output is a row of messages
that each have a header (gpt-oss: `<|channel|>analysis<|message|>…<|end|>`).
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum

from engine.errors import InvalidParamsError


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtMarks:
    """The marks of a model, as tokens. With `bare` they are channels, else tags."""

    begin: tuple[int, ...]
    """What opens thoughts: one token for tags, the header of the thinking channel for channels."""
    end: int
    """The token that ends them; for channels, any message."""
    bare: tuple[int, ...] = ()
    """Channels: the header of the answer where it comes first."""
    bridge: tuple[int, ...] = ()
    """Channels: what leads from the end of the thoughts to the answer, its header included."""
    title: tuple[int, ...] = ()
    """Tags: what a model writes behind `begin` before its thoughts, such as `thought` and a line end (Gemma 4)."""

    @property
    def are_channels(self) -> bool:
        return bool(self.bare)


@dataclass(frozen=True, slots=True, kw_only=True)
class Thoughts:
    """The thoughts of a request's outputs. Raises InvalidParamsError for a budget below 0."""

    marks: ThoughtMarks
    is_open: bool = False
    """Whether the prompt ends inside them."""
    budget: int | None = None
    """The most tokens between the marks, a title included: the engine then ends them. None: no limit of their own."""
    lead: tuple[int, ...] = ()
    """Tags: at most one token, which may come before `begin` (a line end in GLM 4.5 and 4.6)."""

    def __post_init__(self) -> None:
        if self.budget is not None and (type(self.budget) is not int or self.budget < 0):
            raise InvalidParamsError(f"the budget of thoughts is {self.budget!r}; it must be a whole number from 0.")


class Part(StrEnum):
    """What a token belongs to."""

    MARK = "mark"
    """A mark of thoughts, or a header of a message."""
    THOUGHT = "thought"
    ANSWER = "answer"


@dataclass(slots=True)
class ThoughtReader:
    """Tells the part of each token of an output, in order."""

    thoughts: Thoughts
    part: Part = field(init=False)
    """The part of the next token, unless that is a mark."""
    num_tokens: int = 0
    """Tokens of thoughts so far, without marks."""
    has_ended: bool = False
    """Whether thoughts have ended."""
    header: tuple[int, ...] = ()
    """Channels: the tokens of a header that is not complete."""

    def __post_init__(self) -> None:
        self.part = Part.THOUGHT if self.thoughts.is_open else self._outside

    @property
    def has_begun(self) -> bool:
        return self.has_ended or self.part is Part.THOUGHT

    @property
    def has_spent_budget(self) -> bool:
        budget = self.thoughts.budget
        return budget is not None and self.num_tokens >= budget

    def read(self, token_id: int) -> Part:
        """Return the part of the next token."""
        marks = self.thoughts.marks
        if self.part is Part.THOUGHT:
            return self._read_thought(token_id)
        if not marks.are_channels:
            if token_id != marks.begin[0] or self.has_begun:
                return Part.ANSWER
            self.part = Part.THOUGHT
            return Part.MARK
        if self.part is Part.ANSWER and token_id != marks.end:
            return Part.ANSWER
        return self._read_header(token_id)

    def _read_thought(self, token_id: int) -> Part:
        if token_id != self.thoughts.marks.end:
            self.num_tokens += 1
            return Part.THOUGHT
        self.part, self.has_ended = self._outside, True
        return Part.MARK

    def _read_header(self, token_id: int) -> Part:
        """Read a token between two messages; the last one of a header tells whether thoughts follow."""
        marks = self.thoughts.marks
        if token_id == marks.end:
            self.part, self.header = Part.MARK, ()
        elif token_id != marks.begin[-1]:
            self.header += (token_id,)
        else:
            # The channel's name follows the token that marks it; a recipient of a call may come before or after.
            is_thought = marks.begin[:-1] == self.header[-len(marks.begin) + 1 :]
            self.part, self.header = (Part.THOUGHT if is_thought else Part.ANSWER), ()
        return Part.MARK

    @property
    def _outside(self) -> Part:
        return Part.MARK if self.thoughts.marks.are_channels else Part.ANSWER


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedTokens:
    """The tokens of an output by part."""

    thoughts: tuple[int, ...]
    answer: tuple[int, ...]
    has_ended: bool
    """Whether the thoughts have ended; False also where there are none."""
    is_cut: bool
    """Whether the output ends in its thoughts, or before its answer."""
    has_spent_budget: bool
    thought_places: tuple[int, ...]
    """Where the tokens of the thoughts are in the output."""
    answer_places: tuple[int, ...]
    """Where the tokens of the answer are in the output."""
    is_plain: bool
    """Whether all tokens are the answer's."""

    @property
    def first_thought(self) -> int:
        """Return where the thoughts begin; 0 without any."""
        return self.thought_places[0] if self.thought_places else 0

    @property
    def first_place(self) -> int:
        """Return where the answer begins; 0 without one."""
        return self.answer_places[0] if self.answer_places else 0

    @property
    def behind_thoughts(self) -> int:
        """Return the place behind the last thought before the answer begins; 0 without one."""
        return max((place + 1 for place in self.thought_places if place < self.first_place), default=0)


def parted(token_ids: Iterable[int], thoughts: Thoughts) -> PartedTokens:
    """Part an output that has ended, without its stop token."""
    reader = ThoughtReader(thoughts)
    token_ids = tuple(token_ids)
    parts = [reader.read(token_id) for token_id in token_ids]
    places = tuple(place for place, part in enumerate(parts) if part is Part.ANSWER)
    thought_places = [place for place, part in enumerate(parts) if part is Part.THOUGHT]
    if not thoughts.is_open:
        thought_places = thought_places[_title_length([token_ids[place] for place in thought_places], thoughts.marks) :]
    return PartedTokens(
        thoughts=tuple(token_ids[place] for place in thought_places),
        answer=tuple(token_ids[place] for place in places),
        has_ended=reader.has_ended,
        is_cut=reader.part is Part.THOUGHT or (reader.part is Part.MARK and not places),
        has_spent_budget=reader.has_spent_budget,
        thought_places=tuple(thought_places),
        answer_places=places,
        is_plain=not reader.has_begun and len(places) == len(token_ids),
    )


def _title_length(token_ids: list[int], marks: ThoughtMarks) -> int:
    """Return how many tokens of thoughts are their title, which may be cut; 0 if they begin with another text."""
    start = tuple(token_ids[: len(marks.title)])
    return len(start) if start == marks.title[: len(start)] else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """The tokens that may follow: those of the grammar and `also`, or only `only`, or all but `without`."""

    only: frozenset[int] | None = None
    without: frozenset[int] = frozenset()
    is_grammars: bool = False
    also: frozenset[int] = frozenset()

    def allows(self, token_id: int) -> bool:
        """Tell whether a token may follow that is not left to the grammar."""
        if self.is_grammars:
            return token_id in self.also
        return token_id not in self.without if self.only is None else token_id in self.only


EVERYTHING = Next()


class ThoughtGate:
    """What may follow in an output that thinks: a grammar applies behind the thoughts, and a budget ends them."""

    __slots__ = ("_held_off", "_is_led", "_is_structured", "_num_answered", "_reader")

    def __init__(self, thoughts: Thoughts, *, is_structured: bool, stop_token_ids: Iterable[int]) -> None:
        """A structured output may not end in its thoughts: `stop_token_ids` are held off there."""
        self._reader = ThoughtReader(thoughts)
        self._is_structured = is_structured
        self._held_off = frozenset(stop_token_ids) - {thoughts.marks.end} if is_structured else frozenset()
        self._num_answered = 0
        self._is_led = False  # whether the last token was the one that may come before the opening mark

    def copy(self) -> ThoughtGate:
        """Return an independent gate at the same place."""
        copied = copy(self)
        copied._reader = copy(self._reader)
        return copied

    @property
    def forced(self) -> tuple[int, ...]:
        """Return the tokens that must follow: the end of thoughts whose budget is spent, and the way to the answer."""
        reader, marks = self._reader, self._reader.thoughts.marks
        if self._is_led:
            return marks.begin
        if reader.part is Part.THOUGHT:
            return (marks.end, *marks.bridge) if reader.has_spent_budget else ()
        if reader.part is Part.MARK and reader.has_ended and (self._is_structured or reader.has_spent_budget):
            return marks.bridge[len(reader.header) :]
        return ()

    @property
    def next(self) -> Next:
        """Return what may follow here."""
        reader, marks = self._reader, self._reader.thoughts.marks
        if self.forced:
            return Next(only=frozenset(self.forced[:1]))
        if reader.part is Part.THOUGHT:
            return Next(without=self._held_off)
        if not self._is_structured:
            return EVERYTHING
        if reader.part is Part.MARK:
            done = len(reader.header)
            ways = (way for way in (marks.begin, marks.bare) if way[:done] == reader.header)
            return Next(only=frozenset(way[done] for way in ways))
        may_think = not (marks.are_channels or reader.has_begun or self._num_answered)
        begins = frozenset(marks.begin + reader.thoughts.lead)
        return Next(is_grammars=True, also=begins if may_think else frozenset())

    def read(self, token_id: int) -> None:
        """Advance by a token that `next` allows."""
        part = self._reader.read(token_id)
        self._is_led = self._is_structured and part is Part.ANSWER  # those of a grammar are not read here

    def answer(self) -> None:
        """Advance by a token of the grammar."""
        self._num_answered += 1
