"""The questions to every document, checked before any is read, and the batch lines that ask them."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from features.documents.extraction.course.line_results import TOO_LONG_CODE
from features.documents.extraction.documents.document import Document
from features.documents.extraction.documents.layout import LayoutText
from features.documents.extraction.fields.groups import EXPECTED_ITEMS, Group, answer_tokens, groups, unbounded_lists
from features.documents.extraction.fields.paths import Path as FieldPath
from features.documents.extraction.fields.schema import FieldSchema
from features.documents.extraction.passages.cutting import Count
from features.documents.extraction.passes.asking_again import CONTRADICTED, TOO_LONG, asked_again, fewer_reasons
from features.documents.extraction.passes.document_reading import Question
from features.documents.extraction.passes.examples import MAX_EXAMPLES, Example, examples_in_words
from features.documents.extraction.passes.excerpts import EXCERPT_RULES, LEAST_ROOM, Excerpt, Showing, Window
from features.documents.extraction.passes.hunter import hunter_request
from features.documents.extraction.passes.likeness import choose_examples
from features.documents.extraction.passes.prompts import Request, Shape, choose_shape
from features.documents.extraction.passes.second_reading import kinds_read, second_reading_request
from features.documents.extraction.scoring.calibration import Calibration

ENDPOINT = "/v1/chat/completions"

_TRIES = 3
_TOKENS_PER_MESSAGE = 16
"""More than any chat template adds to a message, and than is lost by counting parts separately."""
_BUDGET = "thinking_token_budget"
_LEAST_TOKENS = 256
_ANSWER_MARGIN = 2.0
"""Factor from the expected to the maximum length of an answer if the user gives no bound."""
_NAMED_LISTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The passes over each document besides the first questions."""

    again: bool = True
    """Doubtful fields are asked a second time, and unanswered ones in halves."""
    second_reading: bool = False
    """Each document is also read a second way: all its values, without fields."""
    cover: bool = False
    """Each document is asked again with every found value covered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractJob:
    """The schema and settings shared by all documents."""

    schema: FieldSchema
    groups: tuple[Group, ...]
    quotes: bool
    """Whether each value is asked with the words that hold it; otherwise the value itself is located."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of the requests, such as `max_tokens`."""
    model: str = ""
    """The model name in the lines."""
    asked: bytes = b""
    """The schema as given, and everything else that the answers depend on: for `identity`."""
    examples: tuple[Example, ...] = ()
    """Documents with their true fields; each document is shown the most similar ones."""
    calibration: Calibration | None = None
    """Gives scores their meaning; without it they are uncalibrated."""
    passes: Passes = field(default_factory=Passes)
    window: Window | None = None
    """The context beyond which documents are shown in parts; None: they are always shown whole."""
    is_bound_given: bool = True
    """Whether the user gave `max_tokens`; otherwise it is an estimate of the longest answer."""

    def told(self, error: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the error of a question; explain an estimated `max_tokens` if it was the cause."""
        if self.is_bound_given or error["code"] != TOO_LONG_CODE or "max_tokens" not in error["message"]:
            return error
        leaves = [leaf for group in self.groups for leaf in group.leaves]
        lists = ", ".join(map(repr, unbounded_lists(leaves, self.schema.containers)[:_NAMED_LISTS]))
        made_of = f"{EXPECTED_ITEMS} items of {lists}, which may have more" if lists else "its fields"
        advice = f"Give a maxItems below {EXPECTED_ITEMS}" if lists else "Ask fewer fields at once with max_fields"
        message = (
            f"An answer may have {self.params['max_tokens']:,} tokens, as the schema asks for: {made_of}. {advice}, or "
            f"give max_tokens. ({error['message']})"
        )
        return {**error, "message": message}

    def identity(self, *parts: str) -> str:
        """Return a digest of everything that answers depend on except documents, passes and window, and of `parts`."""
        learned = self.calibration and self.calibration.to_json()
        groups = [[leaf.path for leaf in group.leaves] for group in self.groups]
        examples = [[one.document_text, dict(one.fields)] for one in self.examples]
        content = [
            self.asked.decode(),
            self.quotes,
            dict(self.params),
            groups,
            learned,
            examples,
            EXCERPT_RULES[-1],
            parts,
        ]
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]

    @property
    def shape(self) -> Shape:
        """Return which part of its prompts comes first."""
        return choose_shape(len(self.groups))

    def showing(self, document: Document) -> Showing:
        """Return a document prepared for prompts."""
        if self.window is None:
            return Showing(document)
        return Showing(document, self.window.count, excerpt_rule=self.window.excerpt_rule)

    def excerpt(self, group: int, showing: Showing) -> Excerpt:
        """Return the excerpt of a document for a group: as much as the longest of its questions has room for."""
        if group not in showing.excerpts:
            showing.excerpts[group] = self._excerpt(self.groups[group], showing)
        return showing.excerpts[group]

    def part_excerpt(self, question: Question, showing: Showing) -> Excerpt:
        """Return the excerpt for a group or a part of it after the whole group's question was too long.

        The text gets half of the window, and half of that again each time a part was too long: a text may have more
        tokens than counted, and the room left by a part's fewer fields would make it as long again.
        """
        part = self.asked_again(question)
        key = tuple(leaf.path for leaf in part.leaves), question.num_halved
        if key not in showing.parts:
            showing.parts[key] = self._excerpt(part, showing, share=0.5**question.num_halved)
        return showing.parts[key]

    def halvings(self, shown: LayoutText) -> range:
        """Return the numbers of halvings of the window that give less than a prompt showed, but at least LEAST_ROOM."""
        if self.window is None or (limit := self._most_tokens(self.window)) < LEAST_ROOM:
            return range(0)
        first = math.floor(math.log2(limit / max(1, self.window.count(shown.text)))) + 1
        return range(max(1, first), math.floor(math.log2(limit / LEAST_ROOM)) + 1)

    def first_request(self, group: int, text: str) -> Request:
        """Return the first question for a group; `text` is that of its excerpt."""
        return self._request(text, self.groups[group])

    def second_request(self, group: int, text: str) -> Request | None:
        """Return the second reading of a document for a group; None if it could find nothing."""
        return self._second_request(text, self.groups[group])

    def covered_request(self, group: int, text: str, *, max_characters: int) -> Request:
        """Return the question for a group with the found values covered."""
        whole, examples = self.groups[group], choose_examples(text, self.examples)
        return hunter_request(
            text, whole, quotes=self.quotes, examples=examples, shape=self.shape, max_characters=max_characters
        )

    def again_request(self, text: str, question: Question) -> Request:
        """Return a repeated question for leaves, with as many reasons as fit the model's context.

        A too long question is not given as a reason: nothing was answered that could be doubtful.
        """
        group = self.asked_again(question)
        doubts = {path: reason for path, reason in question.doubts.items() if reason != TOO_LONG}
        request = self._request(text, group, doubts=doubts or None)
        for remaining in fewer_reasons(doubts) if doubts else ():
            if self.window is None or _num_tokens(request, self.window.count) <= self._most_tokens(self.window):
                break
            request = self._request(text, group, doubts=remaining)
        return request

    def asked_again(self, question: Question) -> Group:
        """Return the leaves of a question as a group."""
        return asked_again(self.groups[question.group], question.doubts)

    def room(self, group: int) -> int | None:
        """Return the tokens of text that every question for a group has room for; None: unknown."""
        if self.window is None:
            return None
        return self._most_tokens(self.window) - self._longest(self.groups[group], "", self.window.count)

    def fits(self) -> Callable[[Example], bool]:
        """Return a function that tells whether examples as long as one leave a prompt room for a document."""
        window = self.window
        if window is None:
            return lambda _example: True
        plain = replace(self, examples=())
        rooms = [
            self._most_tokens(window) - LEAST_ROOM - plain._longest(group, "", window.count, told=False)
            for group in self.groups
        ]

        def fits(example: Example) -> bool:
            texts = (examples_in_words([example], group, quotes=self.quotes) for group in self.groups)
            taken = (MAX_EXAMPLES * (window.count(one) + _TOKENS_PER_MESSAGE) for one in texts)
            return all(tokens <= room for tokens, room in zip(taken, rooms, strict=True))

        return fits

    def line(
        self,
        document: int,
        key: int | str,
        request: Request,
        *,
        is_second_reading: bool = False,
        context: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Return the line with a request to the model; `context` says what to retrieve for its prompt.

        `key` is the number of its group, or one of `question_keys`.
        """
        prompt = {"messages": list(request.messages), "response_format": request.response_format}
        body = {"model": self.model, **self.params, **prompt, **({} if context is None else {"context": context})}
        name = custom_id(document, key, is_second_reading=is_second_reading)
        line = {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": body}
        return orjson.dumps(line) + b"\n"

    def _excerpt(self, group: Group, showing: Showing, *, share: float = 1.0) -> Excerpt:
        if self.window is None:
            return showing.whole
        limit = self._most_tokens(self.window)
        if share == 1 and self._longest(group, showing.whole.layout.text, _num_bytes) <= limit:
            return showing.whole  # a token has at least one byte
        told = limit - self._longest(group, "", self.window.count) >= LEAST_ROOM
        room = min(limit - self._longest(group, "", self.window.count, told=told), int(share * limit))
        for _ in range(_TRIES):  # the choice of examples depends on the excerpt
            excerpt = showing.excerpt(group, room)
            too_many = self._longest(group, excerpt.layout.text, self.window.count, told=told) - limit
            if too_many <= 0 or room < LEAST_ROOM:
                return excerpt
            room -= too_many
        return excerpt

    def _longest(self, group: Group, text: str, count: Count, *, told: bool = True) -> int:
        """Return the tokens of the longest prompt for a group: with every doubt, and a reason if `told`."""
        # One shared reason is counted. If leaves have several, some are left out: room for them would be taken from the
        # document's text.
        doubts = dict.fromkeys((leaf.path for leaf in group.leaves), CONTRADICTED) if told else {}
        again = self._request(text, group, doubts=doubts)
        return max(_num_tokens(one, count) for one in (again, self._second_request(text, group)) if one is not None)

    def _most_tokens(self, window: Window) -> int:
        """Return the maximum tokens of a prompt beside the longest answer."""
        return window.max_tokens - int(self.params.get("max_tokens") or 0)

    def _request(self, text: str, group: Group, *, doubts: Mapping[FieldPath, str | None] | None = None) -> Request:
        examples = choose_examples(text, self.examples)
        return hunter_request(text, group, quotes=self.quotes, examples=examples, shape=self.shape, doubts=doubts)

    def _second_request(self, text: str, group: Group) -> Request | None:
        if not kinds_read(group):
            return None
        examples = choose_examples(text, self.examples)
        return second_reading_request(text, group, quotes=self.quotes, examples=examples, shape=self.shape)


def custom_id(document: int, key: int | str, *, is_second_reading: bool = False) -> str:
    """Return the custom id of a line; documents and groups count from 0.

    A second reading has its own, so that both questions may be lines of one batch.
    """
    return f"document-{document}-group-{key}" + ("-second-reading" if is_second_reading else "")


def question_keys(questions: Sequence[Question]) -> dict[str, Question]:
    """Return the questions of one round by key: the number of a group, and the part if it has several questions."""
    numbers = Counter(question.group for question in questions)
    seen: Counter[int] = Counter()
    by_key: dict[str, Question] = {}
    for question in questions:
        part = f"-{seen[question.group]}" if numbers[question.group] > 1 else ""
        by_key[f"{question.group}{part}"] = question
        seen[question.group] += 1
    return by_key


def answered_questions(questions: Sequence[Question], keys: Collection[str]) -> dict[str, Question]:
    """Return the questions of a round that have results, given the `keys` of those."""
    return {key: question for key, question in question_keys(questions).items() if key in keys}


def plan(schema: bytes, *, quotes: bool, params: Mapping[str, Any], max_fields: int, apart: bool = False) -> ExtractJob:
    """Return the job; `params` may limit answers with `max_tokens`. Raises SchemaError with the place.

    With `apart` each top-level field of the schema, an object or a list with its content, is asked separately.
    """
    parsed = FieldSchema.parse(schema)
    bound_tokens, num_thoughts = params.get("max_tokens"), _num_thoughts(params)
    room = None if bound_tokens is None else max(1, bound_tokens - num_thoughts)
    parts = groups(parsed, max_leaves=max_fields, max_tokens=room, quotes=quotes, apart=apart)
    bound = {"max_tokens": num_thoughts + max(_max_tokens(part, quotes=quotes) for part in parts)}
    return ExtractJob(
        schema=parsed,
        groups=tuple(parts),
        quotes=quotes,
        params=bound | _thinking(params) | dict(params),
        asked=schema,
        is_bound_given=bound_tokens is not None,
    )


def _thinking(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return how far answers may think: not at all, unless the parameters say something about it."""
    is_asked = any(params.get(name) is not None for name in (_BUDGET, "reasoning_effort", "chat_template_kwargs"))
    return {} if is_asked else {_BUDGET: 0}


def _num_thoughts(params: Mapping[str, Any]) -> int:
    """Return the tokens that an answer's thoughts take from `max_tokens`; a wrong value is refused with the line."""
    budget = params.get(_BUDGET)
    return budget if type(budget) is int and budget > 0 else 0


def _max_tokens(group: Group, *, quotes: bool) -> int:
    expected = sum(answer_tokens(leaf, group.containers, quotes=quotes) for leaf in group.leaves)
    return max(_LEAST_TOKENS, math.ceil(_ANSWER_MARGIN * expected))


def _num_tokens(request: Request, count: Count) -> int:
    prompt = (message["content"] for message in request.messages)
    return sum(count(part) + _TOKENS_PER_MESSAGE for part in ("", *prompt))


def _num_bytes(text: str) -> int:
    return len(text.encode())
