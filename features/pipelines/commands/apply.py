"""A pipeline as a YAML file in version control: its steps, caps and schedules."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from math import isfinite
from pathlib import Path
from typing import Any

from jobs.errors import InputError

_MAX_BYTES = 1 << 20
_OF_PIPELINE = ("steps", "max_tokens", "max_cost")
_ALLOWED = ("name", *_OF_PIPELINE, "schedules")

SCHEDULE_DEFAULTS = {
    "time_zone": "UTC",
    "starts_at": None,
    "ends_at": None,
    "jitter_seconds": 0,
    "overlap": "skip",
    "catch_up": "latest",
    "catch_up_seconds": 6 * 3600,
    "max_failures": None,
    "late_after_seconds": None,
}
"""The defaults of `POST /v1/schedules`: a field that a file no longer has returns to its default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFile:
    """The content of a file."""

    name: str
    definition: dict[str, Any]
    schedules: list[dict[str, Any]]


def read_file(path: Path) -> PipelineFile:
    """Read a pipeline's file. Raises InputError naming the wrong field, or the line where it is not YAML."""
    content = _parsed(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: it is not a pipeline; give a mapping with name and steps")
    unknown = [str(key) for key in content if key not in _ALLOWED]
    if unknown:
        raise InputError(f"{path}: there is no field {unknown[0]!r}; allowed are {', '.join(_ALLOWED)}")
    name = content.get("name")
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{path}: name is {name!r}; give the pipeline a name, such as nightly")
    schedules = content.get("schedules") or []
    if not isinstance(schedules, list) or not all(isinstance(each, dict) for each in schedules):
        raise InputError(f"{path}: schedules must be a list of mappings, each with cron")
    named = [_named(path, name, each) for each in schedules]
    names = [each["name"] for each in named]
    twice = [each for each in names if names.count(each) > 1]
    if twice:
        raise InputError(f"{path}: several schedules have the name {twice[0]!r}; give each its own name")
    definition = {key: content[key] for key in _OF_PIPELINE if content.get(key) is not None}
    if isinstance(definition.get("max_cost"), (int, float)):
        definition["max_cost"] = str(definition["max_cost"])
    return PipelineFile(name=name, definition=definition, schedules=named)


def _named(path: Path, pipeline: str, schedule: dict[Any, Any]) -> dict[str, Any]:
    """Return a schedule with its name, by default the pipeline's, and without fields that are null."""
    fields = {key: value for key, value in schedule.items() if value is not None}
    named: dict[str, Any] = {"name": pipeline, **fields}
    if not isinstance(named["name"], str) or not named["name"].strip():
        raise InputError(f"{path}: a schedule's name is {named['name']!r}; give it as text, in quotes")
    return named


def _parsed(path: Path) -> Any:
    import yaml

    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has {path.stat().st_size:,} bytes; {_MAX_BYTES:,} are allowed")
        return _plain(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text in UTF-8") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or "it is nested too deeply"
        raise InputError(f"{path} is not YAML{place}: {problem}") from None
    except (ValueError, TypeError) as error:  # such as an impossible date, a set, or bytes
        raise InputError(f"{path} has a value that cannot be used: {error}; put it in quotes if it is text") from None


def _plain(value: Any) -> Any:
    """Write values that JSON does not have as text, such as a time without quotes, which YAML parses."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"{value} is not a number in JSON")
    if value is not None and not isinstance(value, (str, int, float)):
        raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
    return value
