"""Keeps special tokens out of users' texts: only the chat template writes special tokens.

A text may contain the spelling of a special token: a page about chat templates, or a document that tries to forge a
turn. Such places are broken up before the template sees the text, and restored as plain text when it is tokenised.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from jobs.lines.body_checks import BodyError
from workers.text_encoder import TextEncoder

_BREAK = "".join(chr(0xE000 + secrets.randbelow(0x1900)) for _ in range(10))
"""Inserted where a text would read as a token, and removed from the rendered prompt.

Private-use letters survive whatever a template does to texts (trimming, upper case, JSON), and 126 random bits cannot
be guessed, so no user's text contains them.
"""

_BREAKS = re.compile(f"{_BREAK}|{re.escape(json.dumps(_BREAK)[1:-1])}")  # JSON may be written in ASCII

Change = Callable[[str], str]

Check = Callable[[str], None]
"""Raises if a prompt is too long to be encoded."""


class SpecialTokenizer(Protocol):
    """The methods of a transformers tokenizer that are needed here."""

    def encode(self, text: str, *, add_special_tokens: bool = ...) -> list[int]: ...
    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]: ...


class UserTexts:
    """Breaks marks in the texts of conversations, and encodes the rendered prompt.

    Marks are the tokenizer's special tokens, and other added tokens that the template writes, such as `<tool_call>`.
    The latter are left alone in an assistant's text, as a model writes them as text.
    """

    def __init__(self, tokenizer: SpecialTokenizer, *, template: str) -> None:
        # A single letter cannot be broken. White space is not a mark: templates write it as ordinary text.
        added = [token for token in tokenizer.added_tokens_decoder.values() if len(token.content.strip()) > 1]
        special = [token.content for token in added if token.special]
        written = [token.content for token in added if not token.special and token.content in template]
        self._tokenizer = tokenizer
        self._encoder = TextEncoder(tokenizer)
        self._marks = [*special, *written]
        self._of_assistants = _Breaker(special)
        self._of_others = _Breaker(self._marks)
        self._lock = threading.Lock()
        self._exact: _ExactEncoder | None = None

    def broken(self, messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the conversation with no mark in its texts."""
        return [{name: self._broken(message, name) for name in message} for message in messages]

    def broken_tools(self, tools: Sequence[Any] | None) -> list[Any] | None:
        """Return the tools with no mark in their texts."""
        return None if tools is None else [_mapped(tool, self._of_others.broken) for tool in tools]

    def broken_variables(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a template's variables with no mark in their texts."""
        return {name: _mapped(value, self._of_others.broken) for name, value in variables.items()}

    def _broken(self, message: Mapping[str, Any], name: str) -> Any:
        if name == "role":  # already validated; templates make marks of it
            return message[name]
        is_assistants = name == "content" and message["role"] == "assistant"
        return _mapped(message[name], (self._of_assistants if is_assistants else self._of_others).broken)

    def forged(self, rendered: str, token_ids: Sequence[int]) -> bool:
        """Tell whether a reader of the prompt's text alone would take marks in its texts for special tokens."""
        if _BREAK not in rendered and not _BREAKS.search(rendered):
            return False
        return self._encoder.encode(_BREAKS.sub("", rendered), add_special_tokens=False) != list(token_ids)

    def encode(self, rendered: str, check: Check) -> list[int]:
        """Return the tokens of a rendered prompt. Raise BodyError if the tokenizer cannot read marks as text."""
        pieces = _BREAKS.split(rendered)
        check("".join(pieces))
        if len(pieces) == 1:
            return self._encoder.encode(rendered, add_special_tokens=False)
        with self._lock:
            if self._exact is None:
                self._exact = _ExactEncoder(self._tokenizer, self._marks)
        return self._exact.encode(pieces)


class _Breaker:
    """Breaks texts inside each mark, ignoring case, and at an edge that holds a piece of a mark.

    A template may write two texts side by side, which then read as one.
    """

    def __init__(self, marks: Iterable[str]) -> None:
        folded = {mark.lower() for mark in marks}
        self._mark = re.compile(f"(?i){_any_of(folded)}")
        heads = _edges({mark[:end] for mark in folded for end in range(1, len(mark))}, place=-1)
        tails = _edges({mark[start:] for mark in folded for start in range(1, len(mark))}, place=0)
        self._head = re.compile(_any_of(head[::-1] for head in heads))  # matched from a text's end
        self._tail = re.compile(_any_of(tails))
        self._longest = max(map(len, folded), default=0)

    def broken(self, text: str) -> str:
        core = text.strip()  # templates trim
        if not core:
            return text
        head, tail = core[-self._longest :].lower(), core[: self._longest].lower()
        before = _BREAK if self._tail.match(tail) else ""
        after = _BREAK if self._head.match(head[::-1]) else ""
        start = text.index(core)
        return text[:start] + before + self._broken_inside(core) + after + text[start + len(core) :]

    def _broken_inside(self, text: str) -> str:
        pieces, done = [], 0
        match = self._mark.search(text)
        while match is not None:
            pieces.append(text[done : match.start() + 1])
            done = match.start() + 1  # the next mark may begin inside this one
            match = self._mark.search(text, done)
        return _BREAK.join([*pieces, text[done:]])


class _ExactEncoder:
    """A copy of the tokenizer in which the marks have names that occur in no text.

    One call encodes a whole prompt as the tokenizer itself would, normaliser included, but the copy recognises only
    the template's own marks, which are written with these names.
    """

    def __init__(self, tokenizer: Any, marks: Sequence[str]) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            reason = (
                "messages hold a special token of this model, and its tokenizer cannot read it as text; leave it out"
            )
            raise BodyError("messages", reason)
        self._names = {mark: f"{_BREAK[:5]}{chr(0xF0000 + place)}{_BREAK[5:]}" for place, mark in enumerate(marks)}
        self._copy = _renamed(backend, self._names)
        self._ids = {self._copy.token_to_id(name): backend.token_to_id(mark) for mark, name in self._names.items()}
        # All added tokens: if one that is not a mark begins first or is longer, the tokenizer matches that.
        self._added = re.compile(_any_of(token.content for token in tokenizer.added_tokens_decoder.values()))

    def encode(self, pieces: Iterable[str]) -> list[int]:
        """Return the tokens of a text in pieces; no mark is read across the seam of two pieces."""
        text = "".join(self._added.sub(self._name_of, piece) for piece in pieces)
        (encoded,) = self._copy.encode_batch_fast([text], add_special_tokens=False)  # without the interpreter's lock
        return [self._ids.get(token_id, token_id) for token_id in encoded.ids]

    def _name_of(self, match: re.Match[str]) -> str:
        return self._names.get(match[0], match[0])


def _renamed(backend: Any, names: Mapping[str, str]) -> Any:
    """Return a copy of a tokenizer in which tokens have other names, and which never produces them from plain text."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - most workers never need it

    written = json.loads(backend.to_str())
    written |= {"truncation": None, "padding": None, "post_processor": None}
    for token in written["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = written["model"]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): token_id for token, token_id in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(token, token), score] for token, score in model["vocab"]]
    if model.get("merges"):
        merges = (pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"])
        model["merges"] = [pair for pair in merges if not {*pair, "".join(pair)} & names.keys()]
    return Tokenizer.from_str(json.dumps(written))


def _mapped(value: Any, change: Change) -> Any:
    """Return a JSON value with all its texts changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(one, change) for one in value]
    return value


def _edges(parts: Iterable[str], *, place: int) -> frozenset[str]:
    """Return the pieces of marks that are not plain words and have no white space where a template would trim it."""
    return frozenset(part for part in parts if not part.replace("_", "a").isalnum() and not part[place].isspace())


def _any_of(texts: Iterable[str]) -> str:
    """Return a pattern that matches the longest of these texts, in time that does not grow with their number."""
    trie: dict[str, Any] = {}
    for text in texts:
        node = trie
        for letter in text:
            node = node.setdefault(letter, {})
        node[""] = {}
    return _pattern(trie) if trie else "(?!)"


def _pattern(node: Mapping[str, Any]) -> str:
    branches = [re.escape(letter) + _pattern(below) for letter, below in node.items() if letter]
    if "" in node:
        return f"(?:{'|'.join(branches)})?" if branches else ""
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
