"""The definition of a pipeline: parses JSON into checked values. Templates are checked elsewhere.

An error names its place, such as `steps.1.source.store`, and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import orjson
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StrictBool,
    StrictInt,
    ValidationError,
    model_validator,
)

from features.pipelines.external.store import BESIDE
from features.pipelines.names import check_name
from features.pipelines.refusals import refusal
from features.pipelines.rows.lines.grouping import GROUP_COLUMNS
from jobs.call_limits import parse_window
from jobs.errors import InputError
from jobs.states import AskedPriority

MAX_STEPS = 20
MAX_DEFINITION_BYTES = 1 << 20
MAX_TOKENS = 10**15
MAX_GROUP_COLUMNS = 10
MAX_KEYS = 100
MAX_KEY_LENGTH = 1000
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_IN_SOURCE = {"pipeline", "date", "hour"}
_IN_OUTPUT = {"pipeline", "date", "hour", "step", "run", "n"}
_RESERVED_PARAMETERS = {
    **dict.fromkeys(("model", "messages", "prompt", "response_format"), "model, prompt and schema set it"),
    "stream": "a batch has no reader",
    "n": "a row has one answer",
}
_COST = re.compile(r"[0-9]{1,9}(\.[0-9]{1,12})?", re.ASCII)


class Take(StrEnum):
    """Which of a source's files a run takes."""

    ALL = "all"
    NEW = "new_since_last_success"  # files whose current version no successful run of the pipeline has taken


class Format(StrEnum):
    """The format of a file of rows."""

    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class OnError(StrEnum):
    """The effect of a row without an answer on its run."""

    SKIP = "skip"  # its row is kept with an error, and skips further steps
    FAIL = "fail"  # the run fails before the step publishes anything


class SpecModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _name(text: str) -> str:
    try:
        return check_name(text)
    except InputError as error:
        raise ValueError(error.message) from None


def check_key(key: str, allowed: set[str]) -> str:
    """Return a key, or a pattern of keys, that stays inside its store. Raise ValueError."""
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
        raise ValueError("its braces do not match; they are for placeholders such as {date}")
    return key


def _source_keys(value: Any) -> str | list[str]:
    keys = (value,) if isinstance(value, str) else value
    if not isinstance(keys, list | tuple) or not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"give a key, or a list of 1 to {MAX_KEYS} keys")
    for key in keys:
        if not isinstance(key, str) or not 1 <= len(key) <= MAX_KEY_LENGTH:
            raise ValueError(f"a key is a text of 1 to {MAX_KEY_LENGTH:,} characters")
        check_key(key, _IN_SOURCE)
    if len(set(keys)) < len(keys):
        raise ValueError("it names a key twice")
    return value if isinstance(value, str) else list(keys)


def _output_key(key: str) -> str:
    check_key(key, _IN_OUTPUT)
    if key.endswith("/"):
        raise ValueError("it names a folder; name its files too, as in results/{date}/part-{n}.jsonl")
    if "{n}" not in key.rpartition("/")[2]:
        raise ValueError("its last part needs {n}, the number of a file, as in part-{n}.jsonl")
    if "/" not in key:
        raise ValueError(
            "put the files into their own folder, as in {pipeline}/{date}/part-{n}.jsonl: its _SUCCESS "
            "marks them as complete"
        )
    folders = key.split("/")[:-1]
    if any("{n}" in part for part in folders):
        raise ValueError("{n} is allowed only in its last part: all files of a run are in one folder")
    if "*" in key or "?" in key:
        raise ValueError("* and ? are for sources; an output has exact names")
    if BESIDE in folders or any(part.startswith(".") for part in key.split("/")):
        raise ValueError(f"no part may begin with a dot or be {BESIDE}: readers of the store skip these")
    return key


def checked_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of every request beside its prompt. Raise ValueError for those set elsewhere."""
    for name, reason in _RESERVED_PARAMETERS.items():
        if name in parameters:
            raise ValueError(f"there may be no {name!r} among them: {reason}")
    return parameters


def _cost(text: str) -> str:
    if not _COST.fullmatch(text):
        raise ValueError(f"it is {text[:40]!r}; give an amount as a text, such as '2.50'")
    return text


def _window(text: str) -> str:
    try:
        parse_window(text)
    except InputError as error:
        raise ValueError(error.message) from None
    return text


Name = Annotated[str, AfterValidator(_name)]


class Source(SpecModel):
    """The source of a step's rows: files of a store, rows of an earlier step, or answers of a batch."""

    store: Name | None = None
    """A store that the operator has registered for the tenant."""
    keys: Annotated[str | list[str], PlainValidator(_source_keys)] | None = None
    """Keys, or patterns with `*`, `?` and `**`: one or a list; {date}, {hour} and {pipeline} are those of the run."""
    format: Format | None = None
    """None: from each file's name."""
    take: Take = Take.ALL
    step: Name | None = None
    group_by: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_GROUP_COLUMNS)] | None = None
    """Columns of that step's rows: rows with equal values in them become one row; None: no grouping."""
    batch: Annotated[str, Field(pattern=r"^batch_[0-9A-Za-z]{1,60}$")] | None = None
    """A batch of the tenant; each of its answers is a row."""

    @model_validator(mode="after")
    def _check(self) -> Source:
        if [self.store, self.step, self.batch].count(None) != 2:
            raise ValueError(
                "give exactly one of store (with keys), step (the name of an earlier step) and batch (one of your own)"
            )
        if self.store is not None and self.keys is None:
            raise ValueError("give keys too: which of the store's files, such as {date}/*.jsonl")
        if self.store is None and (self.keys, self.format, self.take) != (None, None, Take.ALL):
            raise ValueError("keys, format and take are for the files of a store; a step and a batch have none")
        if self.group_by is not None:
            self._check_groups(self.group_by)
        return self

    def _check_groups(self, columns: tuple[str, ...]) -> None:
        if self.step is None:
            raise ValueError("group_by is for the rows of an earlier step; give step in place of store")
        reserved = [name for name in columns if name in GROUP_COLUMNS]
        if reserved:
            raise ValueError(f"group_by has {reserved[0]!r}, which is reserved for a group's values in templates")
        if len(set(columns)) < len(columns):
            raise ValueError("group_by names a column twice")


class Output(SpecModel):
    """Where a step's rows are written, with their answers."""

    store: Name
    keys: Annotated[str, Field(min_length=1, max_length=MAX_KEY_LENGTH), AfterValidator(_output_key)]
    """Such as `{pipeline}/{date}/part-{n}.jsonl`; a `_SUCCESS` file in the folder marks them as complete."""
    format: Format | None = None
    """None: from the keys."""
    rows_a_file: Annotated[StrictInt, Field(ge=1, le=10_000_000)] = 100_000

    @property
    def form(self) -> Format:
        """The format of its files."""
        form = self._named_form()
        assert form is not None, "it is checked"
        return form

    def _named_form(self) -> Format | None:
        return self.format or next((form for form in Format if self.keys.lower().endswith(f".{form}")), None)

    @model_validator(mode="after")
    def _check(self) -> Output:
        if self._named_form() is None:
            raise ValueError(
                "its keys do not show the format: end them with .jsonl, .csv or .parquet, or give a format"
            )
        named = next((form for form in Format if self.keys.lower().endswith(f".{form}")), self.form)
        if named is not self.form:
            raise ValueError(f"its keys end in .{named} and its format is {self.form}; leave the format out")
        return self


class Step(SpecModel):
    """One step: a template over rows."""

    name: Name
    source: Source
    prompt: Annotated[str, Field(min_length=1, max_length=1 << 18)]
    """A template: see docs/pipelines.md."""
    model: Annotated[str, Field(min_length=1, max_length=200)]
    response_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    """JSON Schema of the answers; None for text."""
    parameters: Annotated[dict[str, Any], AfterValidator(checked_parameters)] = {}
    """Parameters of the request's body, such as max_tokens and temperature."""
    thoughts: StrictBool = False
    """Whether the thoughts of a model that thinks become a column of that name."""
    priority: AskedPriority = AskedPriority.BULK
    completion_window: Annotated[str, AfterValidator(_window)] = "24h"
    on_error: OnError = OnError.SKIP
    output: Output | None = None


class Definition(SpecModel):
    """A pipeline."""

    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_STEPS)]
    max_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_TOKENS)] | None = None
    """Limit for all batches of a run; None: only the tenant's budget limits them."""
    max_cost: Annotated[str, AfterValidator(_cost)] | None = None
    """The same in units of currency, as a string."""

    @model_validator(mode="after")
    def _check(self) -> Definition:
        seen: set[str] = set()
        for number, step in enumerate(self.steps):
            if step.name in seen:
                raise ValueError(f"steps.{number}.name: {step.name!r} names an earlier step; give each its own")
            if step.source.step is not None and step.source.step not in seen:
                raise ValueError(
                    f"steps.{number}.source.step: {step.source.step!r} is not an earlier step; "
                    "name one that comes before"
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
                    "replace them: put {run} into the folder, as in {pipeline}/{date}/{run}/part-{n}.jsonl"
                )
            folder = (step.output.store, step.output.keys.rpartition("/")[0].replace("{step}", step.name))
            if folder in folders:
                raise ValueError(
                    f"steps.{number}.output.keys: they lie in the folder of step {folders[folder]!r}; a _SUCCESS is "
                    "for one step, so give each its own folder, such as {pipeline}/{step}/{date}/part-{n}.jsonl"
                )
            folders[folder] = step.name


def parse_definition(definition: Mapping[str, Any]) -> Definition:
    """Check a definition. Raise InputError that names the place."""
    try:
        text = orjson.dumps(definition)
    except TypeError as error:
        raise InputError(f"The definition is not JSON: {error}.", param="steps") from None
    if b"\\u0000" in text:
        raise InputError("The definition contains a NUL character, which is not allowed. Remove it.", param="steps")
    size = len(text)
    if size > MAX_DEFINITION_BYTES:
        raise InputError(
            f"The definition has {size:,} bytes and {MAX_DEFINITION_BYTES:,} are allowed. Move long texts into rows.",
            param="steps",
        )
    try:
        return Definition.model_validate(definition)
    except ValidationError as error:
        raise refusal(error) from None
