"""Parsing and validation of the annotations `x-tokenmill` and `x-derived` of a schema.

Whether a metric suits a leaf's type is checked where the leaf is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar

from features.documents.extraction.errors import SchemaError
from features.documents.extraction.fields.leaf import Metric
from features.documents.extraction.fields.paths import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """Content of `x-tokenmill`; None if missing, so that the type decides."""

    ground: bool | None = None
    """False for a field with `x-derived: true`."""
    metric: Metric | None = None
    key: bool = False
    required_for_auto: bool = False
    weight: float = 1.0
    checks: tuple[str, ...] = ()

    OF_A_LEAF: ClassVar[frozenset[str]] = frozenset({"ground", "metric", "key", "required_for_auto", "weight"})


def read_annotations(node: Mapping[str, Any], path: Path, allowed: Set[str]) -> Annotations:
    """Return the annotations of a node. Raises SchemaError."""
    annotations = node.get("x-tokenmill", {})
    if not isinstance(annotations, Mapping):
        raise SchemaError(f"`x-tokenmill` is {annotations!r}; it must be an object.", path)
    if unknown := sorted(set(annotations) - allowed):
        raise SchemaError(f"`x-tokenmill` has {unknown[0]!r}; here it may have {_listed(allowed)}.", path)
    for name in ("ground", "key", "required_for_auto"):
        if not isinstance(annotations.get(name, False), bool):
            raise SchemaError(f"`{name}` is {annotations[name]!r}; it must be true or false.", path)
    return Annotations(
        ground=_ground(node, annotations, path),
        metric=_metric(annotations, path),
        key=annotations.get("key", False),
        required_for_auto=annotations.get("required_for_auto", False),
        weight=_weight(annotations.get("weight", 1.0), path),
        checks=_checks(annotations.get("checks", []), path),
    )


def _ground(node: Mapping[str, Any], annotations: Mapping[str, Any], path: Path) -> bool | None:
    is_derived, ground = node.get("x-derived", False), annotations.get("ground")
    if not isinstance(is_derived, bool):
        raise SchemaError(f"`x-derived` is {is_derived!r}; it must be true or false.", path)
    if is_derived and ground:
        raise SchemaError("`x-derived` and `ground` are both true, and contradict each other. Leave one out.", path)
    return False if is_derived else ground


def _metric(annotations: Mapping[str, Any], path: Path) -> Metric | None:
    if "metric" not in annotations:
        return None
    try:
        return Metric(annotations["metric"])
    except ValueError:
        raise SchemaError(f"`metric` is {annotations['metric']!r}; it may be {_listed(set(Metric))}.", path) from None


def _weight(weight: Any, path: Path) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1000:
        raise SchemaError(f"`weight` is {weight!r}; it must be a number above 0, and at most 1000.", path)
    return float(weight)


def _checks(checks: Any, path: Path) -> tuple[str, ...]:
    if not isinstance(checks, list) or not all(isinstance(check, str) for check in checks):
        raise SchemaError("`checks` must be a list of texts such as 'sum(lines.amount) == net'.", path)
    return tuple(checks)


def _listed(names: Set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
