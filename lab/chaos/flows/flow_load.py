"""A steady load of flows of all recipes; what each hands out is checked at its end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy.orm import Session

from features.pipelines import stores
from jobs.accounts import keys, tenants
from jobs.database import connect, sessions, transaction
from lab.chaos.flows import documents, end_checks, runs, translations
from lab.chaos.flows.budgets import BudgetWatch
from lab.chaos.flows.place import FlowOutcome, Place
from lab.chaos.load import Load
from lab.chaos.patience import OverdueError, PatientClient, RefusedError
from lab.chaos.stack import TENANTS, Stack

NUM_OPEN = 16
"""Open flows: enough that every fault meets some of each recipe."""
_CarryOut = Callable[[Place, str, random.Random], FlowOutcome]
_RECIPES: Mapping[str, _CarryOut] = {
    "run": runs.trigger,
    "extraction": documents.extract,
    "index": documents.index,
    "translation": translations.carry_out,
    "after": runs.chain,
    "passages": documents.ask_library,
}
_TIGHT = "tight"
_OF_TIGHT = ("run", "extraction")


class FlowLoad(Load[FlowOutcome]):
    """Threads that create flows and wait for their ends; a unit is a flow."""

    noun, unit = "flow", "flows"

    def __init__(self, stack: Stack, *, num_flows: int, seed: int) -> None:
        super().__init__(num_least=num_flows, num_threads=min(NUM_OPEN, num_flows))
        self._stack = stack
        self._seed = seed
        self._key_prefix = f"s{seed}f"
        self._places: list[Place] = []
        self._budgets: BudgetWatch | None = None

    @property
    def num_finished(self) -> int:
        return len(self.outcomes)

    def size_of(self, number: int, *, num_left: int) -> int:
        del number, num_left
        return 1

    def prepare(self) -> None:
        """Give each tenant stores, pipelines and schedules; add a tenant with a small budget."""
        self._places = list(_places(self._stack))
        for place in self._places:
            runs.add_pipelines(place)
        self._budgets = BudgetWatch(self._stack, self._places[-1].tenant_id)
        self._budgets.start()

    def carry_out(self, number: int, size: int) -> FlowOutcome:
        rng = random.Random(f"{self._seed} flow {number}")
        place = self._places[number % len(self._places)]
        recipe = rng.choice(_OF_TIGHT if place.is_tight else list(_RECIPES))
        name = f"{self._key_prefix}{number}"
        try:
            return _RECIPES[recipe](place, name, rng)
        except RefusedError as error:
            if not place.may_refuse(error.text):
                raise
            return FlowOutcome(recipe=recipe, flow_id=name, status="refused", num_items=0, problems=[])

    def findings(self) -> Iterator[str]:
        """End the schedules, wait for their runs, and yield what was wrong on the way and at the end."""
        for place in self._places:
            runs.pause_schedules(place)
        for place in self._places:
            self.outcomes += _scheduled(place)
        if self._budgets is not None:
            self._budgets.stop()
            yield from self._budgets.findings
            if not self._budgets.num_looks:
                yield "no look at the budgets was answered"
        for outcome in self.outcomes:
            yield from (f"{outcome.recipe} {outcome.flow_id}: {problem}" for problem in outcome.problems)
        yield from end_checks.findings(self._stack, key_prefix=self._key_prefix)


def _places(stack: Stack) -> Iterator[Place]:
    """Yield the places of the stack's tenants, and of one more whose budget is small."""
    engine = connect(stack.database_url)
    try:
        with transaction(sessions(engine)) as session:
            tight = tenants.create_tenant(session, _TIGHT, limit_tokens=0)
            secrets = {**dict(zip(TENANTS, stack.keys, strict=True)), _TIGHT: keys.create_key(session, tight.id)[1]}
            for name, secret in secrets.items():
                place = Place(
                    stack=stack,
                    client=PatientClient(f"{stack.base_url}/v1", secret),
                    tenant=name,
                    tenant_id=tenants.find_tenant(session, name).id,
                    is_tight=name == _TIGHT,
                )
                _add_stores(session, place)
                yield place
    finally:
        engine.dispose()


def _add_stores(session: Session, place: Place) -> None:
    for name in ("documents", "results"):
        url, is_writable = place.store_url(name), name == "results"
        stores.add_store(session, place.tenant_id, name, url, options=place.store_options(), is_writable=is_writable)


def _scheduled(place: Place) -> Iterator[FlowOutcome]:
    """Yield the runs of a tenant's schedules, once all have ended."""
    for name in runs.scheduled_pipelines(place):
        after: str | None = None
        while True:
            page = place.client.call("GET", "/runs", params=_page(name, after))
            for run in page["data"]:
                yield _outcome_of(place, name, run["id"])
            if not page["has_more"]:
                break
            after = page["last_id"]


def _outcome_of(place: Place, pipeline: str, run_id: str) -> FlowOutcome:
    try:
        return runs.outcome(place, pipeline, runs.until_ended(place, run_id))
    except OverdueError as error:
        return FlowOutcome(recipe="run", flow_id=run_id, status="overdue", num_items=0, problems=[str(error)])


def _page(pipeline: str, after: str | None) -> dict[str, Any]:
    return {"pipeline": pipeline, "limit": 100} | ({} if after is None else {"after": after})
