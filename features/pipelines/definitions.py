"""A tenant's pipelines: create, read, list, change, delete. `spec` defines what a definition may contain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import orjson
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from features.pipelines import lifecycle, steps, stores
from features.pipelines.named import get_named, hold_room, lock_named, of_tenant
from features.pipelines.names import check_name
from features.pipelines.settings import PipelineSettings
from features.pipelines.sources import batch_rows
from features.pipelines.spec import Definition, Step, parse_definition
from features.pipelines.tables import Pipeline, Run, Schedule, Store
from jobs.errors import InputError
from jobs.ids import new_id
from jobs.pagination import Page, read_page


def create_pipeline(
    session: Session,
    tenant_id: str,
    name: str,
    definition: Mapping[str, Any],
    settings: PipelineSettings,
    *,
    api_key_id: str | None = None,
) -> Pipeline:
    """Create a pipeline. Raise InputError, ConflictError if the name is taken, or LimitError."""
    check_name(name)
    stored = _stored(parse_definition(definition))
    hold_room(session, Pipeline, tenant_id, name, settings)
    pipeline = Pipeline(id=new_id("pipeline"), tenant_id=tenant_id, name=name, definition=stored, api_key_id=api_key_id)
    session.add(pipeline)
    session.flush()
    session.refresh(pipeline)
    return pipeline


def get_pipeline(session: Session, tenant_id: str, pipeline_id: str) -> Pipeline:
    """Return a pipeline of this tenant, by its id or its name. Raise NotFoundError."""
    return get_named(session, Pipeline, tenant_id, pipeline_id)


def list_pipelines(session: Session, tenant_id: str, *, after: str | None = None, limit: int = 20) -> Page[Pipeline]:
    """Return a page of a tenant's pipelines, newest first. Raise InputError on an unknown `after`."""
    query = select(Pipeline).where(of_tenant(Pipeline, tenant_id))
    return read_page(session, query, table=Pipeline, tenant_id=tenant_id, after=after, limit=limit)


def change_pipeline(
    session: Session,
    tenant_id: str,
    pipeline_id: str,
    *,
    definition: Mapping[str, Any],
    api_key_id: str | None = None,
) -> Pipeline:
    """Change a pipeline's definition; runs that have begun keep theirs. An equal definition changes nothing."""
    pipeline = lock_named(session, Pipeline, tenant_id, pipeline_id)
    stored = _stored(parse_definition(definition))
    if orjson.dumps(stored) != orjson.dumps(pipeline.definition):  # the order of a schema's properties counts
        pipeline.definition, pipeline.api_key_id = stored, api_key_id or pipeline.api_key_id
        pipeline.version += 1
        session.flush()
        session.execute(update(Pipeline).where(Pipeline.id == pipeline.id).values(updated_at=func.now()))
        session.refresh(pipeline)
    return pipeline


def delete_pipeline(session: Session, tenant_id: str, pipeline_id: str) -> Pipeline:
    """Delete a pipeline and its schedules; queued runs are cancelled, a run in progress continues."""
    pipeline = get_pipeline(session, tenant_id, pipeline_id)
    theirs = (Schedule.pipeline_id == pipeline.id) & Schedule.deleted_at.is_(None)
    session.execute(update(Schedule).where(theirs).values(deleted_at=func.now()))
    pipeline = lock_named(session, Pipeline, tenant_id, pipeline.id)
    lifecycle.stop_queued(session, Run.pipeline_id == pipeline.id, reason="its pipeline was deleted")
    pipeline.deleted_at = session.scalar(select(func.now()))
    session.flush()
    return pipeline


def check_names(session: Session, tenant_id: str, definition: Definition) -> dict[str, Store]:
    """Return the stores that a definition names, by name.

    Raise NotFoundError or InputError if it names a model, store or batch that the tenant lacks.
    """
    named = [name for step in definition.steps for name in _stores_of(step)]
    known = stores.find_stores(session, tenant_id, named)
    require = partial(stores.require, session, tenant_id, known=known)
    for number, step in enumerate(definition.steps):
        try:
            steps.require_model(session, step.model)
        except InputError as error:
            place = f"steps.{number}.model"
            raise InputError(f"{place}: {error.message}", param=place, code=error.code) from None
        if step.source.store is not None:
            require(step.source.store, place=f"steps.{number}.source.store", writing=False)
        if step.source.batch is not None:
            batch_rows.require(session, tenant_id, step.source.batch, place=f"steps.{number}.source.batch")
        if step.output is not None:
            require(step.output.store, place=f"steps.{number}.output.store", writing=True)
    return known


def _stores_of(step: Step) -> Iterator[str]:
    if step.source.store is not None:
        yield step.source.store
    if step.output is not None:
        yield step.output.store


def _stored(definition: Definition) -> dict[str, Any]:
    """Return a definition for storage: without defaults, as a later release may change them."""
    return definition.model_dump(mode="json", by_alias=True, exclude_unset=True)
