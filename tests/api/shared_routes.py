"""The routes of all applications of a process, made once: making them takes half a second of CPU.

FastAPI makes the routes of an included router anew for each application, at its first request, though they differ in
nothing but the application whose dependencies they would override; no test overrides one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache

from fastapi.routing import _EffectiveRouteContext, _IncludedRouter, _RouterIncludeContext
from starlette.routing import BaseRoute


@cache
def share() -> None:
    """Let applications take over routes that were included in the same way."""
    make = _IncludedRouter._build_effective_context
    made: dict[int, list[tuple[BaseRoute, _RouterIncludeContext, _EffectiveRouteContext | None]]] = defaultdict(list)

    def take_or_make(included: _IncludedRouter, route: BaseRoute) -> _EffectiveRouteContext | None:
        way = replace(included.include_context, dependency_overrides_provider=None)
        for _, other, context in made[id(route)]:
            if other == way:
                return context
        context = make(included, route)
        made[id(route)].append((route, way, context))  # with the route, whose id stays its own
        return context

    _IncludedRouter._build_effective_context = take_or_make  # type: ignore[assignment, method-assign]
