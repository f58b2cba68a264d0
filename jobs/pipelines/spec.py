"""What a pipeline's definition may say: JSON in, checked values out. No SQL, and no look into templates.

Whoever gives a wrong one is told its place, as in `steps.1.source.store`, and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictInt, ValidationError, model_validator

from jobs.batches.submission import parse_window
from jobs.errors import InputError
from jobs.pipelines.names import check_name
from jobs.states import Priority

MAX_STEPS = 20
MAX_DEFINITION_BYTES = 1 << 20
MAX_TOKENS = 10**15
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_IN_SOURCE = {"pipeline", "date", "hour"}
_IN_OUTPUT = {"pipeline", "date", "hour", "step", "run", "n"}
_RESERVED_PARAMETERS = ("model", "messages", "prompt", "stream", "response_format")


class Take(StrEnum):
    """Which of a source's files a run takes."""

    ALL = "all"
    NEW = "new_since_last_success"  # those that no successful run of the pipeline took as they are now


class Format(StrEnum):
    """How rows are written in a file."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class OnError(StrEnum):
    """What a row without an answer does to its run."""

    SKIP = "skip"  # it keeps its row, with an error, and goes through no further step
    FAIL = "fail"  # the run fails, before the step puts anything out


class SpecModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _name(text: str) -> str:
    try:
        return check_name(text)
    except InputError as error:
        raise ValueError(error.message) from None


def check_key(key: str, allowed: set[str]) -> str:
    """Return a key, or a pattern of keys, that stays inside its store. Raises ValueError."""
    parts = key.split("/")
    if key.startswith("/") or ".." in parts or "." in parts or "" in parts[:-1] or "\\" in key:
        raise ValueError("give a key below the store, without a leading /, empty parts, . or ..")
    if any(ord(character) < 32 or character == "\x7f" for character in key):
        raise ValueError("a key holds no control characters")
    unknown = [name for name in _PLACEHOLDER.findall(key) if name not in allowed]
    if unknown:
        listed = ", ".join(f"{{{name}}}" for name in sorted(allowed))
        raise ValueError(f"{{{unknown[0]}}} is not known; allowed are {listed}")
    if "{" in _PLACEHOLDER.sub("", key) or "}" in _PLACEHOLDER.sub("", key):
        raise ValueError("its braces do not match; {date} and the like stand in them")
    return key


def _source_key(key: str) -> str:
    return check_key(key, _IN_SOURCE)


def _output_key(key: str) -> str:
    check_key(key, _IN_OUTPUT)
    if key.endswith("/"):
        raise ValueError("it names a folder; name its files too, as in results/{date}/part-{n}.jsonl")
    if "{n}" not in key.rpartition("/")[2]:
        raise ValueError("its last part needs {n}, the number of a file, as in part-{n}.jsonl")
    if "/" not in key:
        raise ValueError(
            "put the files into a folder of their own, as in {pipeline}/{date}/part-{n}.jsonl: its _SUCCESS "
            "says that they are whole"
        )
    return key


def _window(text: str) -> str:
    try:
        parse_window(text)
    except InputError as error:
        raise ValueError(error.message) from None
    return text


Name = Annotated[str, AfterValidator(_name)]


class Source(SpecModel):
    """Where a step's rows come from: the files of a store, or the rows of an earlier step."""

    store: Name | None = None
    """A store that the operator has registered for the tenant."""
    keys: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_source_key)] | None = None
    """A key, or a pattern with `*`, `?` and `**`; {date}, {hour} and {pipeline} stand for the run's."""
    format: Format | None = None
    """None: as each file is called."""
    take: Take = Take.ALL
    step: Name | None = None

    @model_validator(mode="after")
    def _check(self) -> Source:
        if (self.store is None) == (self.step is None):
            raise ValueError("give either store, with keys, or step, the name of an earlier step")
        if self.store is not None and self.keys is None:
            raise ValueError("give keys too: which of the store's files, such as {date}/*.jsonl")
        if self.step is not None and (self.keys, self.format, self.take) != (None, None, Take.ALL):
            raise ValueError("keys, format and take are for the files of a store; a step has none")
        return self


class Output(SpecModel):
    """Where a step's rows go, with what was answered."""

    store: Name
    keys: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_output_key)]
    """Such as `{pipeline}/{date}/part-{n}.jsonl`; `_SUCCESS` beside them says that all are there."""
    format: Format | None = None
    """None: as the keys say."""
    rows_a_file: Annotated[StrictInt, Field(ge=1, le=10_000_000)] = 100_000

    @model_validator(mode="after")
    def _check(self) -> Output:
        written = self.format or next((form for form in Format if self.keys.lower().endswith(f".{form}")), None)
        if written is None:
            raise ValueError("its keys do not say what it is: end them with .jsonl or .csv, or give a format")
        if written is Format.PARQUET:
            raise ValueError("outputs are written as jsonl or csv; Parquet is read only")
        return self


class Step(SpecModel):
    """One template over rows."""

    name: Name
    source: Source
    prompt: Annotated[str, Field(min_length=1, max_length=1 << 18)]
    """A template: see docs/pipelines.md."""
    model: Annotated[str, Field(min_length=1, max_length=200)]
    response_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """JSON Schema of the answers; None: they are text."""
    parameters: dict[str, Any] = {}
    """Of the request's body, such as max_tokens and temperature."""
    priority: Priority = Priority.BULK
    completion_window: Annotated[str, AfterValidator(_window)] = "24h"
    on_error: OnError = OnError.SKIP
    output: Output | None = None

    @model_validator(mode="after")
    def _check(self) -> Step:
        for name in _RESERVED_PARAMETERS:
            if name in self.parameters:
                raise ValueError(f"parameters may not have {name!r}: model, prompt and schema say it")
        return self


class Definition(SpecModel):
    """A pipeline."""

    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_STEPS)]
    max_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Of all batches of a run; None: as many as the tenant's budget has."""
    max_cost: Annotated[str, Field(max_length=30, pattern=r"^[0-9]{1,9}(\.[0-9]{1,12})?$")] | None = None
    """The same in units of currency, as a string."""

    @model_validator(mode="after")
    def _check(self) -> Definition:
        seen: set[str] = set()
        for number, step in enumerate(self.steps):
            if step.name in seen:
                raise ValueError(f"steps.{number}.name: {step.name!r} names an earlier step; give each its own")
            if step.source.step is not None and step.source.step not in seen:
                raise ValueError(
                    f"steps.{number}.source.step: {step.source.step!r} is no earlier step; name one that comes before"
                )
            seen.add(step.name)
        self._check_outputs()
        if all(step.output is None for step in self.steps):
            raise ValueError("no step has an output; give the last one a store and keys")
        return self

    def _check_outputs(self) -> None:
        folders: dict[tuple[str, str], str] = {}
        taken_once: set[str | None] = set()
        for number, step in enumerate(self.steps):
            if step.source.take is Take.NEW or step.source.step in taken_once:
                taken_once.add(step.name)
            if step.output is None:
                continue
            if step.name in taken_once and "{run}" not in step.output.keys.rpartition("/")[0]:
                raise ValueError(
                    f"steps.{number}.output.keys: its rows are taken once, and another run for the same keys would "
                    "take their place: put {run} into the folder, as in {pipeline}/{date}/{run}/part-{n}.jsonl"
                )
            folder = (step.output.store, step.output.keys.rpartition("/")[0].replace("{step}", step.name))
            if folder in folders:
                raise ValueError(
                    f"steps.{number}.output.keys: they lie in the folder of step {folders[folder]!r}; one _SUCCESS "
                    "speaks for one step, so give each its own, such as {pipeline}/{step}/{date}/part-{n}.jsonl"
                )
            folders[folder] = step.name


def parse_definition(given: Mapping[str, Any]) -> Definition:
    """Check a definition. Raises InputError that names the place."""
    try:
        text = orjson.dumps(given)
    except TypeError as error:
        raise InputError(f"The definition is no JSON: {error}.", param="steps") from None
    if b"\\u0000" in text:
        raise InputError("The definition holds a NUL character, which no text may have. Remove it.", param="steps")
    size = len(text)
    if size > MAX_DEFINITION_BYTES:
        raise InputError(
            f"The definition has {size:,} bytes and {MAX_DEFINITION_BYTES:,} are allowed. Put what is long into rows.",
            param="steps",
        )
    try:
        return Definition.model_validate(given)
    except ValidationError as error:
        raise _wrong(error) from None


def _wrong(error: ValidationError) -> InputError:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        message = "there is no such field; remove it"
    shown = repr(first.get("input"))
    given = "" if first["type"] in ("missing", "value_error", "extra_forbidden") else f" (given: {shown[:80]})"
    where = f"{place}: " if place else ""
    return InputError(f"{where}{message}{given}", param=place or "steps", code="invalid_pipeline")
