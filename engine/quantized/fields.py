"""Fields of a quantization_config, each refused by name with what it may be."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import UnsupportedModelError


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a quantization_config or of a part of it; every method raises UnsupportedModelError."""

    config: Mapping[str, Any]
    method: str
    """What is quantized so, for errors."""
    path: Path
    """The model's directory."""

    def refused(self, name: str, allowed: str) -> UnsupportedModelError:
        """Return the error for the value of a field."""
        return UnsupportedModelError(
            f"{self.path / 'config.json'} has {name} {self.config.get(name)!r} for {self.method}; {allowed}."
        )

    def one_of(self, name: str, allowed: Collection[Any], *, default: Any = None) -> Any:
        """Return a field that has one of a few values; a missing one has the default."""
        value = self.config.get(name)
        value = default if value is None else value
        if not any(type(value) is type(each) and value == each for each in allowed):
            raise self.refused(name, f"the engine reads {' and '.join(map(str, allowed))}. Use such weights")
        return value

    def group_size(self) -> int | None:
        """Return the numbers of a row that share a scale; None: all, which is −1 in the file."""
        size = self.config.get("group_size")
        if type(size) is not int or (size != -1 and size < 1):
            raise self.refused("group_size", "it must be a positive number, or -1 for one scale a row")
        return None if size == -1 else size

    def without(self, name: str, what: str) -> None:
        """Refuse a field that is neither missing nor empty."""
        if self.config.get(name):
            raise self.refused(name, f"{what} Use weights without it")
