"""Flows of a line recipe, the example's: translate, judge, and translate the bad ones again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Protocol

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

from examples.flows.translate import Translate, Translation
from jobs.database import connect, sessions, transaction
from jobs.settings import Settings, load_settings
from jobs.storage import Storage
from jobs.tables import Tenant
from lab.chaos.flows.place import FlowOutcome, Place
from lab.chaos.patience import patiently, until_over
from lab.chaos.stack import MODEL
from lab.no_compute.stated import stating

RECIPE = Translate.name
_CONNECTIONS = 4


class Parts(Protocol):
    """What the recipe needs of a control worker's `ControlParts`."""

    @property
    def storage(self) -> Storage: ...
    @property
    def settings(self) -> Settings: ...


def make_recipe(parts: Parts) -> Translate:
    """Return the recipe, for `Feature.recipes`."""
    return Translate(parts.storage, parts.settings)


def variables() -> Mapping[str, str]:
    """Return the variables with which a role serves the recipe."""
    paths = [str(Path(__file__).parent / "served_example"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def carry_out(place: Place, name: str, rng: Random) -> FlowOutcome:
    """Create a flow, wait for its end, and check its records and how many lines each node had."""
    asked = dict(_texts(name, rng))
    flow_id = patiently(lambda: _create(place, name, asked))
    ended = until_over(lambda: patiently(lambda: _ended(place, flow_id)), lambda end: end is not None, flow_id)
    assert ended is not None, "until_over returns an end"
    status, values = ended
    if status != "completed":
        return FlowOutcome(
            recipe=RECIPE, flow_id=flow_id, status=status, num_items=len(asked), problems=[f"it is {status}: {values}"]
        )
    records = [json.loads(line) for line in place.client.content(values).splitlines()]
    expected = [{"id": key, "translation": _answer(text)} for key, text in asked.items()]
    problems = [] if _sorted(records) == _sorted(expected) else [f"its records are {records}, not {expected}"]
    return FlowOutcome(recipe=RECIPE, flow_id=flow_id, status=status, num_items=len(asked), problems=problems)


def _texts(name: str, rng: Random) -> Iterator[tuple[str, str]]:
    """Yield texts; the answer that one states is its translation and the judge's verdict, so that some are bad."""
    for number in range(rng.randrange(1, 8)):
        verdict = rng.choice(("yes", "yes", "no"))
        yield f"{name}-{number}", stating(f"{verdict} {name} {number}")


def _answer(text: str) -> str:
    return text[3:-3]


def _sorted(records: list[dict[str, str]]) -> list[dict[str, str]]:
    return sorted(records, key=lambda record: record["id"])


def _create(place: Place, name: str, texts: Mapping[str, str]) -> str:
    with transaction(sessions(_engine(place.stack.database_url))) as session:
        flow_id: str | None = session.scalar(select(Translation.id).where(Translation.idempotency_key == name))
        if flow_id is not None:
            return flow_id
        recipe = Translate(Storage("memory://"), load_settings())
        tenant = session.get_one(Tenant, place.tenant_id)
        flow = recipe.create(session, tenant, {"model": MODEL, "language": "German", "texts": texts}, key_id=None)
        flow.idempotency_key = name
        return flow.id


def _ended(place: Place, flow_id: str) -> tuple[str, str] | None:
    """Return the state of a flow that has ended, with its output file or its reason."""
    with Session(_engine(place.stack.database_url)) as session:
        flow = session.get_one(Translation, flow_id)
        if flow.ended_at is None:
            return None
        return flow.state, str(flow.asked.get("output_file_id") or flow.reason)


@cache
def _engine(database_url: str) -> Engine:
    return connect(database_url, connections=_CONNECTIONS)
