"""A tenant's pipelines: make, look at, list, change, delete. What a definition may say `spec` knows."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from jobs.errors import NotFoundError
from jobs.tables import Pipeline


def get_pipeline(session: Session, tenant_id: str, pipeline_id: str) -> Pipeline:
    """Return a pipeline of this tenant, by its id or its name. Raises NotFoundError."""
    is_named = (Pipeline.id == pipeline_id) | (Pipeline.name == pipeline_id)
    mine = is_named & (Pipeline.tenant_id == tenant_id) & Pipeline.deleted_at.is_(None)
    pipeline = session.scalar(select(Pipeline).where(mine))
    if pipeline is None:
        raise NotFoundError(f"No pipeline found with id or name {pipeline_id[:100]!r}.", param="pipeline_id")
    return pipeline
