"""The scope that a key needs for each operation, from the features: for authentication and for /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.routing import BaseRoute

from features import FEATURES
from jobs.states import Scope

OPEN = frozenset(name for feature in FEATURES for name in feature.scopes.open)
"""Operations that need no key; some need TOKENMILL_API_OPERATOR_KEY: see `api.middleware.guard`."""

SCOPES: Mapping[str, Scope] = {
    name: scope
    for feature in FEATURES
    for scope, names in (
        (Scope.READ, feature.scopes.read),
        (Scope.SUBMIT, feature.scopes.submit),
        (Scope.ADMIN, feature.scopes.admin),
    )
    for name in names
}
"""By operation id."""


def scope_of(route: BaseRoute) -> Scope | None:
    """Return the scope that a route needs, None if it is open. Raise LookupError if its feature declares none."""
    name = str(getattr(route, "operation_id", None) or getattr(route, "name", ""))
    if name in OPEN:
        return None
    if name not in SCOPES:
        raise LookupError(f"the route {name!r} has no scope: give it one in the feature.py of its feature")
    return SCOPES[name]
