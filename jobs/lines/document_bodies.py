"""The bodies of lines that the service writes for itself: documents to be read or cut, answers to be grounded.

Pure. Users send none of them, yet every field is checked: what is written today is read by a release of next month.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.lines.body_checks import BodyError, Check, object_, text, whole

PREPARE_MODEL = ":prepare"
"""What stands for a model in lines that need none. Their chunks wait in the queue of this name, which `tokenmill
prepare` serves; `jobs.served_models` lets no model begin with a colon."""

DOCUMENTS = "documents"
"""What people see in the place of that name: it is no model."""

READ_ENDPOINT = "/v1/documents/read"
GROUND_ENDPOINT = "/v1/documents/ground"
CUT_ENDPOINT = "/v1/documents/cut"

_KEY = re.compile(r"[0-9]+(-[0-9]+)?")


def shown_model(model: str) -> str:
    """Return a model's name, or what people see where work on documents has no model."""
    return DOCUMENTS if model == PREPARE_MODEL else model


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A document to be read: a file of the tenant, or an object of one of its stores."""

    name: str
    """What users call it; its ending says its format where its bytes do not."""
    file_id: str | None = None
    store: str | None = None
    key: str | None = None
    """Of the object in the store."""
    etag: str | None = None
    """Of the version that was listed; another may be there by now: the answer's sha256 says what was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundRequest:
    """What a model said of a read document, to be found in it."""

    plan_key: str
    """Of the object that says what was asked."""
    name: str
    sha256: str
    first: Sequence[Mapping[str, Any]]
    """Of each group, in their order, its answer: `text` and `logprobs`, or `error` with a code and a message."""
    usage: Mapping[str, Any]
    """Tokens of all answers, as the record tells them."""
    object_key: str | None = None
    """Of the read document."""
    found_key: str | None = None
    """In its place where an index was asked: of the results of looking for its passages."""
    second_readings: Mapping[str, Mapping[str, Any]] | None = None
    """The same of second readings, by the number of the group; None: there are none."""
    again: Sequence[Mapping[str, Mapping[str, Any]]] = ()
    """The same of each round of further questions, by their keys: the number of a group, or 3-0 for a part of it."""
    covered: Mapping[str, Mapping[str, Any]] | None = None
    """The same of what was asked with the found values covered; None: nothing was, so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """Read documents to be cut into passages, of which a segment of an index is made."""

    segment_key: str
    """Of the object that is to be written."""
    documents: Sequence[Mapping[str, str]]
    """Of each its `id`, its `name` and the `object_key` of what was read of it."""
    max_tokens: int
    """Of a passage."""
    overlap_tokens: int
    language: str
    tokenizer_sha256: str | None = None
    """Of the tokenizer whose tokens are counted; None: two bytes are a token."""


def read_request(body: Mapping[str, Any]) -> ReadRequest:
    """Read the body of a line of READ_ENDPOINT. Raises BodyError."""
    given = _checked(body, _READ)
    is_file = "file_id" in given
    if is_file == ("store" in given) or ("store" in given) != ("key" in given) or (is_file and "etag" in given):
        raise BodyError("file_id", "give file_id, or store and key in its place", code="invalid_value")
    return ReadRequest(**_required(given, "name"))


def ground_request(body: Mapping[str, Any]) -> GroundRequest:
    """Read the body of a line of GROUND_ENDPOINT. Raises BodyError."""
    given = _checked(body, _GROUND)
    if ("object_key" in given) == ("found_key" in given):
        raise BodyError("object_key", "give object_key, or found_key in its place", code="invalid_value")
    return GroundRequest(**_required(given, "plan_key", "name", "sha256", "first", "usage"))


def cut_request(body: Mapping[str, Any]) -> CutRequest:
    """Read the body of a line of CUT_ENDPOINT. Raises BodyError."""
    given = _checked(body, _CUT)
    return CutRequest(**_required(given, *(name for name in _CUT if name != "tokenizer_sha256")))


def _checked(body: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the fields that are given, each through its check; `model` says nothing."""
    given = {}
    for name, value in body.items():
        if name != "model" and name not in checks:
            raise BodyError(name, f"{name} is not a field of this endpoint; remove it", code="unknown_parameter")
        if name != "model" and value is not None:
            given[name] = checks[name](name, value)
    return given


def _required(given: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        if name not in given:
            raise BodyError(name, f"{name} is missing", code="missing_required_parameter")
    return given


def _answers(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    if type(value) is not list:
        raise BodyError(name, f"{name} must be a list of answers", code="invalid_type")
    return [_answer(f"{name}[{index}]", one) for index, one in enumerate(value)]


def _answers_by_group(name: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
    for group, one in object_(name, value).items():
        if not (group.isascii() and group.isdigit()):
            raise BodyError(name, f"{name} has the key {group[:40]!r}; give the numbers of groups")
        _answer(f"{name}.{group}", one)
    found: Mapping[str, Mapping[str, Any]] = value
    return found


def _rounds(name: str, value: Any) -> Sequence[Mapping[str, Mapping[str, Any]]]:
    """Check rounds of answers by the keys of their questions."""
    if type(value) is not list:
        raise BodyError(name, f"{name} must be a list of rounds", code="invalid_type")
    for number, answers in enumerate(value):
        for key, one in object_(f"{name}[{number}]", answers).items():
            if not _KEY.fullmatch(key):
                raise BodyError(name, f"{name} has the key {key[:40]!r}; give the number of a group, or 3-0 for a part")
            _answer(f"{name}[{number}].{key}", one)
    rounds: Sequence[Mapping[str, Mapping[str, Any]]] = value
    return rounds


def _answer(name: str, value: Any) -> Mapping[str, Any]:
    """Check one answer: a text with its log-probabilities, or an error."""
    found: Mapping[str, Any] = object_(name, value)
    if ("text" in found) == ("error" in found):
        raise BodyError(name, f"{name} must have a text or an error")
    _checked(found, {"text": text, "error": object_, "logprobs": _logprobs})
    return found


def _logprobs(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    if type(value) is not list or not all(type(one) is dict for one in value):
        raise BodyError(name, f"{name} must be a list of tokens with their log-probabilities", code="invalid_type")
    return value


def _documents(name: str, value: Any) -> Sequence[Mapping[str, str]]:
    if type(value) is not list or not value:
        raise BodyError(name, f"{name} must be a list of documents", code="invalid_type")
    for index, one in enumerate(value):
        given = _checked(object_(f"{name}[{index}]", one), _NAMED)
        _required(given, *_NAMED)
    return value


_READ: dict[str, Check] = {"name": text, "file_id": text, "store": text, "key": text, "etag": text}
_GROUND: dict[str, Check] = {
    "object_key": text,
    "found_key": text,
    "plan_key": text,
    "name": text,
    "sha256": text,
    "first": _answers,
    "usage": object_,
    "second_readings": _answers_by_group,
    "again": _rounds,
    "covered": _answers_by_group,
}
_NAMED: dict[str, Check] = {"id": text, "name": text, "object_key": text}
_CUT: dict[str, Check] = {
    "segment_key": text,
    "documents": _documents,
    "max_tokens": whole(1),
    "overlap_tokens": whole(0),
    "language": text,
    "tokenizer_sha256": text,
}
