"""Work of a control worker on the flows of all recipes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from flows.advancing import FlowAdvancer
from flows.due import Due, find_due
from flows.recipe import Recipe
from jobs.database import transaction
from workers.control_work import ControlParts
from workers.turns.flow_turns import FlowTurns


def flow_turns(recipes: Sequence[Recipe[Any, Any]], parts: ControlParts) -> FlowTurns:
    """Return the turns that advance due flows, and start those that wait for another one to end."""
    advancers = {recipe.name: _advancer(recipe, parts) for recipe in recipes}

    def find(session: Session) -> Sequence[Due]:
        for recipe in recipes:
            _start_waiting(recipe, session, parts.sessions)
        return find_due(session, list(advancers))

    return FlowTurns(
        sessions=parts.sessions,
        find=find,
        advance=lambda due: advancers[due.recipe].advance(due.id),
        look_seconds=parts.settings.claim_alone_seconds,
    )


def _advancer(recipe: Recipe[Any, Any], parts: ControlParts) -> FlowAdvancer[Any, Any]:
    return FlowAdvancer(
        recipe, parts.sessions, parts.settings, hold_sessions=parts.hold_sessions, is_stopping=parts.is_stopping
    )


def _start_waiting(recipe: Recipe[Any, Any], session: Session, sessions: sessionmaker[Session]) -> None:
    if recipe.is_any_waiting(session):
        with transaction(sessions) as starting:
            recipe.start_waiting(starting)
