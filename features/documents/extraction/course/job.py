"""What every document is asked, checked before anything is read; and the lines of a batch that ask it."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from features.documents.extraction.course.answers import TOO_LONG_CODE
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
"""More than any chat template puts around a message, and than tokens that are counted apart have less together."""
_LEAST_TOKENS = 256
_ANSWER_MARGIN = 2.0
_NAMED_LISTS = 3
"""How many times what an answer is expected to take it may take, where the user sets no bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """What is asked of each document beside every group of fields."""

    again: bool = True
    """Doubtful fields are asked for a second time, and in halves what no answer came to."""
    second_reading: bool = False
    """Each document is read another way, too: every value that it has, without fields."""
    cover: bool = False
    """Each document is asked once more, with every value that was found covered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractJob:
    """One schema for all documents."""

    schema: FieldSchema
    groups: tuple[Group, ...]
    quotes: bool
    """Whether each value is asked with the words that hold it; else the value itself is looked for."""
    params: Mapping[str, Any] = field(default_factory=dict)
    """Of the requests, such as `max_tokens`."""
    model: str = ""
    """The name that the lines give."""
    asked: bytes = b""
    """The schema as it was given, and all else that the answers depend on: for `identity`."""
    examples: tuple[Example, ...] = ()
    """Documents with their true fields; each document is shown those that it is most like."""
    calibration: Calibration | None = None
    """What scores mean; without one they are as before gold."""
    passes: Passes = field(default_factory=Passes)
    window: Window | None = None
    """What longer documents are shown in parts for; None where they are asked as a whole, whatever comes of it."""
    is_bound_given: bool = True
    """Whether somebody gave `max_tokens`; else it is an estimate of the longest answer."""

    def told(self, error: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the error of a question; where there is no room, say what a bound is made of that nobody gave."""
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
        """Return a digest of all that answers depend on but documents, passes and the window, and of `parts`."""
        learned = self.calibration and self.calibration.to_json()
        groups = [[leaf.path for leaf in group.leaves] for group in self.groups]
        shown = [[one.document_text, dict(one.fields)] for one in self.examples]
        said = [self.asked.decode(), self.quotes, dict(self.params), groups, learned, shown, EXCERPT_RULES[-1], parts]
        return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()[:24]

    @property
    def shape(self) -> Shape:
        """Return what of its prompts comes first."""
        return choose_shape(len(self.groups))

    def showing(self, document: Document) -> Showing:
        """Return a document as prompts show it."""
        if self.window is None:
            return Showing(document)
        return Showing(document, self.window.count, excerpt_rule=self.window.excerpt_rule)

    def excerpt(self, group: int, showing: Showing) -> Excerpt:
        """Return what of a document every question for a group shows: so much that the longest of them has room."""
        if group not in showing.excerpts:
            showing.excerpts[group] = self._excerpt(self.groups[group], showing)
        return showing.excerpts[group]

    def part_excerpt(self, question: Question, showing: Showing) -> Excerpt:
        """Return what a question for a group or a part of it shows where that of the whole group was too long.

        Of the window the text has half after that, and half of it each time that a part was too long: a text may have
        more tokens than are counted, and what a part's fewer fields leave room for would make it as long again.
        """
        part = self.asked_again(question)
        asked = tuple(leaf.path for leaf in part.leaves), question.num_halved
        if asked not in showing.parts:
            showing.parts[asked] = self._excerpt(part, showing, share=0.5**question.num_halved)
        return showing.parts[asked]

    def halvings(self, shown: LayoutText) -> range:
        """Return how often the window is halved where it has less than a prompt showed, and no less than is shown."""
        if self.window is None or (limit := self._most_tokens(self.window)) < LEAST_ROOM:
            return range(0)
        first = math.floor(math.log2(limit / max(1, self.window.count(shown.text)))) + 1
        return range(max(1, first), math.floor(math.log2(limit / LEAST_ROOM)) + 1)

    def first_request(self, group: int, text: str) -> Request:
        """Return what asks a document for a group the first time; `text` is that of its excerpt."""
        return self._request(text, self.groups[group])

    def second_request(self, group: int, text: str) -> Request | None:
        """Return the second reading of a document beside a group's first; None where it could tell nothing."""
        return self._second_request(text, self.groups[group])

    def covered_request(self, group: int, text: str, *, max_characters: int) -> Request:
        """Return what asks for a group once what was found is covered."""
        whole, examples = self.groups[group], choose_examples(text, self.examples)
        return hunter_request(
            text, whole, quotes=self.quotes, examples=examples, shape=self.shape, max_characters=max_characters
        )

    def again_request(self, text: str, question: Question) -> Request:
        """Return what asks for leaves again, with as many of the reasons as the model's context has room.

        That their question was too long is none of them: nothing was answered that could be doubtful.
        """
        asked = self.asked_again(question)
        doubts = {path: reason for path, reason in question.doubts.items() if reason != TOO_LONG}
        request = self._request(text, asked, doubts=doubts or None)
        for told in fewer_reasons(doubts) if doubts else ():
            if self.window is None or _num_tokens(request, self.window.count) <= self._most_tokens(self.window):
                break
            request = self._request(text, asked, doubts=told)
        return request

    def asked_again(self, question: Question) -> Group:
        """Return the leaves of a question as a group."""
        return asked_again(self.groups[question.group], question.doubts)

    def room(self, group: int) -> int | None:
        """Return for how many tokens of text every question for a group has room; None: nobody knows."""
        if self.window is None:
            return None
        return self._most_tokens(self.window) - self._longest(self.groups[group], "", self.window.count)

    def fits(self) -> Callable[[Example], bool]:
        """Return what tells whether as many examples of one's length as a prompt shows leave room for a document."""
        window = self.window
        if window is None:
            return lambda _example: True
        plain = replace(self, examples=())
        rooms = [
            self._most_tokens(window) - LEAST_ROOM - plain._longest(group, "", window.count, told=False)
            for group in self.groups
        ]

        def fits(example: Example) -> bool:
            told = (examples_in_words([example], group, quotes=self.quotes) for group in self.groups)
            taken = (MAX_EXAMPLES * (window.count(one) + _TOKENS_PER_MESSAGE) for one in told)
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
        """Return the line that puts a request to the model; `context` says what is to be found for its prompt.

        `key` is the number of its group, or one of `question_keys`.
        """
        asked = {"messages": list(request.messages), "response_format": request.response_format}
        body = {"model": self.model, **self.params, **asked, **({} if context is None else {"context": context})}
        name = custom_id(document, key, is_second_reading=is_second_reading)
        line = {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": body}
        return orjson.dumps(line) + b"\n"

    def _excerpt(self, group: Group, showing: Showing, *, share: float = 1.0) -> Excerpt:
        if self.window is None:
            return showing.whole
        limit = self._most_tokens(self.window)
        if share == 1 and self._longest(group, showing.whole.layout.text, _num_bytes) <= limit:
            return showing.whole  # a token has a byte or more
        told = limit - self._longest(group, "", self.window.count) >= LEAST_ROOM
        room = min(limit - self._longest(group, "", self.window.count, told=told), int(share * limit))
        for _ in range(_TRIES):  # which examples a prompt shows depends on what it shows of the document
            excerpt = showing.excerpt(group, room)
            too_many = self._longest(group, excerpt.layout.text, self.window.count, told=told) - limit
            if too_many <= 0 or room < LEAST_ROOM:
                return excerpt
            room -= too_many
        return excerpt

    def _longest(self, group: Group, text: str, count: Count, *, told: bool = True) -> int:
        """Return the tokens of the longest prompt for a group: with every doubt, if any reason is `told`."""
        # Of one reason that all share. Where they have more, some are not told: room for reasons of their own would be
        # taken from the document's text.
        doubts = dict.fromkeys((leaf.path for leaf in group.leaves), CONTRADICTED) if told else {}
        again = self._request(text, group, doubts=doubts)
        return max(_num_tokens(one, count) for one in (again, self._second_request(text, group)) if one is not None)

    def _most_tokens(self, window: Window) -> int:
        """Return the most tokens that a prompt may have beside the longest answer."""
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
    """Return the name of a line; documents and groups count from 0.

    A second reading has one of its own, so that both questions may be lines of one batch.
    """
    return f"document-{document}-group-{key}" + ("-second-reading" if is_second_reading else "")


def question_keys(questions: Sequence[Question]) -> dict[str, Question]:
    """Return the questions of one round by their keys: the number of a group, and which of its questions it is."""
    numbers = Counter(question.group for question in questions)
    seen: Counter[int] = Counter()
    found: dict[str, Question] = {}
    for question in questions:
        part = f"-{seen[question.group]}" if numbers[question.group] > 1 else ""
        found[f"{question.group}{part}"] = question
        seen[question.group] += 1
    return found


def answered_questions(questions: Sequence[Question], keys: Collection[str]) -> dict[str, Question]:
    """Return those questions of a round that have results, which are known by `keys`."""
    return {key: question for key, question in question_keys(questions).items() if key in keys}


def plan(schema: bytes, *, quotes: bool, params: Mapping[str, Any], max_fields: int, apart: bool = False) -> ExtractJob:
    """Return the job; `params` may bound an answer with `max_tokens`. Raises SchemaError with the place.

    With `apart` each of the schema's own fields, an object or a list with all in it, is asked by itself.
    """
    parsed = FieldSchema.parse(schema)
    bound_tokens = params.get("max_tokens")
    parts = groups(parsed, max_leaves=max_fields, max_tokens=bound_tokens, quotes=quotes, apart=apart)
    bound = {"max_tokens": max(_max_tokens(part, quotes=quotes) for part in parts)}
    return ExtractJob(
        schema=parsed,
        groups=tuple(parts),
        quotes=quotes,
        params=bound | dict(params),
        asked=schema,
        is_bound_given=bound_tokens is not None,
    )


def _max_tokens(group: Group, *, quotes: bool) -> int:
    expected = sum(answer_tokens(leaf, group.containers, quotes=quotes) for leaf in group.leaves)
    return max(_LEAST_TOKENS, math.ceil(_ANSWER_MARGIN * expected))


def _num_tokens(request: Request, count: Count) -> int:
    prompt = (message["content"] for message in request.messages)
    return sum(count(part) + _TOKENS_PER_MESSAGE for part in ("", *prompt))


def _num_bytes(text: str) -> int:
    return len(text.encode())
