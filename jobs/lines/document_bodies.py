"""Bodies of the service's own lines: documents to read or cut, answers to ground.

Pure. Users send none of them, yet every field is checked: a later release may read lines that were written today.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.lines.body_checks import BodyError, Check, object_, text, whole

PREPARE_MODEL = ":prepare"
"""Stands for a model in lines that need none. Their chunks wait in the queue of this name, which `tokenmill prepare`
serves; `jobs.served_models` forbids model names that begin with a colon."""

DOCUMENTS = "documents"
"""Shown to users in its place, as it is no model."""

READ_ENDPOINT = "/v1/documents/read"
GROUND_ENDPOINT = "/v1/documents/ground"
CUT_ENDPOINT = "/v1/documents/cut"


def shown_model(model: str) -> str:
    """Return a model's name, or the text shown for document work without a model."""
    return DOCUMENTS if model == PREPARE_MODEL else model


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """A document to read: a file of the tenant, or an object in one of its stores."""

    name: str
    """The user's name of the file; its extension gives the format where its bytes do not."""
    file_id: str | None = None
    store: str | None = None
    key: str | None = None
    """Key of the object in the store."""
    etag: str | None = None
    """ETag of the listed version. The object may have changed since; the answer's sha256 says which version was
    read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedLines:
    """Consecutive lines of a batch that asked about a document; their results are read where they are."""

    batch_id: str
    first_line: int
    num_lines: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenAnswers:
    """The answers themselves, each a `text` with its `logprobs`, or an `error`.

    Lines of schemas 0061 to 0069 hold them: an extraction may have been under way when its database was taken over.
    """

    first: Sequence[Mapping[str, Any]]
    """One for each group, in order."""
    second_readings: Mapping[str, Mapping[str, Any]]
    """By group number, as in `covered`."""
    again: Sequence[Mapping[str, Mapping[str, Any]]]
    """Of each round, by question key."""
    covered: Mapping[str, Mapping[str, Any]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroundRequest:
    """Where a model's answers about a read document are; their values are to be located in it."""

    plan_key: str
    """Key of the object with the questions."""
    name: str
    sha256: str
    number: int = 0
    """Of the document in its extraction, as in the custom_ids of its questions."""
    first: AskedLines | GivenAnswers
    """The first questions for each group, and their second readings. Given answers are those of all rounds."""
    object_key: str | None = None
    """Key of the read document."""
    found_key: str | None = None
    """Key of the passage lookup's results, in place of the document where an index was searched."""
    again: Sequence[AskedLines | None] = ()
    """Each round of further questions; None where it had no room."""
    covered: AskedLines | None = None
    """Questions asked with the found values masked; None where none were asked so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRequest:
    """Read documents to cut into passages for one segment of an index."""

    segment_key: str
    """Key of the object to write."""
    documents: Sequence[Mapping[str, str]]
    """`id`, `name` and the `object_key` of the read text of each."""
    max_tokens: int
    """Per passage."""
    overlap_tokens: int
    language: str
    tokenizer_sha256: str | None = None
    """The tokenizer that counts tokens; None: two bytes count as one token."""


def read_request(body: Mapping[str, Any]) -> ReadRequest:
    """Parse the body of a line of READ_ENDPOINT. Raises BodyError."""
    values = _checked(body, _READ)
    is_file = "file_id" in values
    if is_file == ("store" in values) or ("store" in values) != ("key" in values) or (is_file and "etag" in values):
        raise BodyError("file_id", "give file_id, or store and key in its place", code="invalid_value")
    return ReadRequest(**_required(values, "name"))


def ground_request(body: Mapping[str, Any]) -> GroundRequest:
    """Parse the body of a line of GROUND_ENDPOINT. Raises BodyError."""
    is_given = type(body.get("first")) is list and bool(body["first"])
    values = _checked(body, _GROUND_GIVEN if is_given else _GROUND)
    if ("object_key" in values) == ("found_key" in values):
        raise BodyError("object_key", "give object_key, or found_key in its place", code="invalid_value")
    if is_given:
        return _given(_required(values, *_NAMED_GROUND, "first"))
    return GroundRequest(**_required(values, *_NAMED_GROUND, "number", "first"))


def cut_request(body: Mapping[str, Any]) -> CutRequest:
    """Parse the body of a line of CUT_ENDPOINT. Raises BodyError."""
    values = _checked(body, _CUT)
    return CutRequest(**_required(values, *(name for name in _CUT if name != "tokenizer_sha256")))


def _given(values: dict[str, Any]) -> GroundRequest:
    """Return the request of a line that holds its answers; the token counts of extractions are summed elsewhere."""
    values.pop("usage", None)
    answers = GivenAnswers(
        first=values.pop("first"),
        second_readings=values.pop("second_readings", {}),
        again=values.pop("again", ()),
        covered=values.pop("covered", None),
    )
    return GroundRequest(first=answers, **values)


def _checked(body: Mapping[str, Any], checks: Mapping[str, Check]) -> dict[str, Any]:
    """Return the checked fields; `model` is ignored."""
    values = {}
    for name, value in body.items():
        if name != "model" and name not in checks:
            raise BodyError(name, f"{name} is not a field of this endpoint; remove it", code="unknown_parameter")
        if name != "model" and value is not None:
            values[name] = checks[name](name, value)
    return values


def _required(values: dict[str, Any], *names: str) -> dict[str, Any]:
    for name in names:
        if name not in values:
            raise BodyError(name, f"{name} is missing", code="missing_required_parameter")
    return values


def _asked(name: str, value: Any) -> AskedLines:
    values = _checked(object_(name, value), _ASKED)
    return AskedLines(**_required(values, *_ASKED))


def _rounds(name: str, value: Any) -> Sequence[AskedLines | None]:
    if type(value) is not list:
        raise BodyError(name, f"{name} must be a list of rounds", code="invalid_type")
    return [None if one is None else _asked(f"{name}[{index}]", one) for index, one in enumerate(value)]


def _answers(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    return [_answer(f"{name}[{index}]", one) for index, one in enumerate(value)]


def _answers_by_key(name: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
    return {key: _answer(f"{name}.{key[:40]}", one) for key, one in object_(name, value).items()}


def _given_rounds(name: str, value: Any) -> Sequence[Mapping[str, Mapping[str, Any]]]:
    if type(value) is not list:
        raise BodyError(name, f"{name} must be a list of rounds", code="invalid_type")
    return [_answers_by_key(f"{name}[{index}]", one) for index, one in enumerate(value)]


def _answer(name: str, value: Any) -> Mapping[str, Any]:
    values = _checked(object_(name, value), _ANSWER)
    if ("text" in values) == ("error" in values):
        raise BodyError(name, f"{name} must have a text or an error")
    return values


def _logprobs(name: str, value: Any) -> Sequence[Mapping[str, Any]]:
    if type(value) is not list or not all(type(one) is dict for one in value):
        raise BodyError(name, f"{name} must be a list of tokens with their log-probabilities", code="invalid_type")
    return value


def _documents(name: str, value: Any) -> Sequence[Mapping[str, str]]:
    if type(value) is not list or not value:
        raise BodyError(name, f"{name} must be a list of documents", code="invalid_type")
    for index, one in enumerate(value):
        values = _checked(object_(f"{name}[{index}]", one), _NAMED)
        _required(values, *_NAMED)
    return value


_READ: dict[str, Check] = {"name": text, "file_id": text, "store": text, "key": text, "etag": text}
_ASKED: dict[str, Check] = {"batch_id": text, "first_line": whole(0), "num_lines": whole(1)}
_NAMED_GROUND: dict[str, Check] = {"plan_key": text, "name": text, "sha256": text}
_GROUND: dict[str, Check] = _NAMED_GROUND | {
    "object_key": text,
    "found_key": text,
    "number": whole(0),
    "first": _asked,
    "again": _rounds,
    "covered": _asked,
}
_GROUND_GIVEN: dict[str, Check] = _NAMED_GROUND | {
    "object_key": text,
    "found_key": text,
    "first": _answers,
    "usage": object_,
    "second_readings": _answers_by_key,
    "again": _given_rounds,
    "covered": _answers_by_key,
}
_ANSWER: dict[str, Check] = {"text": text, "logprobs": _logprobs, "error": object_}
_NAMED: dict[str, Check] = {"id": text, "name": text, "object_key": text}
_CUT: dict[str, Check] = {
    "segment_key": text,
    "documents": _documents,
    "max_tokens": whole(1),
    "overlap_tokens": whole(0),
    "language": text,
    "tokenizer_sha256": text,
}
