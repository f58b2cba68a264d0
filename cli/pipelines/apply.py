"""A pipeline as a YAML file in version control: its steps and caps, and its schedules. Reads and compares; no HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from jobs.errors import InputError

_MAX_BYTES = 1 << 20
_OF_PIPELINE = ("steps", "max_tokens", "max_cost")
_ALLOWED = ("name", *_OF_PIPELINE, "schedules")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFile:
    """What a file says."""

    name: str
    definition: dict[str, Any]
    schedules: list[dict[str, Any]]


def read_file(path: Path) -> PipelineFile:
    """Read a pipeline's file. Raises InputError with the line where it is no YAML, or the name of what is wrong."""
    given = _parsed(path)
    if not isinstance(given, dict):
        raise InputError(f"{path}: it holds no pipeline; give a mapping with name and steps")
    unknown = [str(key) for key in given if key not in _ALLOWED]
    if unknown:
        raise InputError(f"{path}: there is no field {unknown[0]!r}; allowed are {', '.join(_ALLOWED)}")
    name = given.get("name")
    if not isinstance(name, str):
        raise InputError(f"{path}: name is {name!r}; give the pipeline a name, such as nightly")
    schedules = given.get("schedules") or []
    if not isinstance(schedules, list) or not all(isinstance(each, dict) for each in schedules):
        raise InputError(f"{path}: schedules must be a list of mappings with cron and the like")
    definition = {key: _plain(given[key]) for key in _OF_PIPELINE if given.get(key) is not None}
    if isinstance(definition.get("max_cost"), (int, float)):
        definition["max_cost"] = str(definition["max_cost"])
    named = [{"name": name, **_plain(each)} for each in schedules]
    return PipelineFile(name=name, definition=definition, schedules=named)


def _parsed(path: Path) -> Any:
    import yaml

    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InputError(f"{path} has {path.stat().st_size:,} bytes and {_MAX_BYTES:,} are allowed")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text in UTF-8") from None
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = getattr(error, "problem", None) or "it is nested too deeply"
        raise InputError(f"{path} is no YAML{place}: {problem}") from None


def _plain(value: Any) -> Any:
    """Write what YAML has and JSON has not as text: a time without quotes is one in YAML."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    return value
