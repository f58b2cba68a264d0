"""`/v1/admin/log`: who changed what."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from api.fields import StrictModel
from api.openapi import failures
from features.administration.http.access import AdminDep
from features.administration.schemas import AdminEntryObject, AdminLogPage
from jobs.admin_log import entries

MAX_PAGE = 1000

router = APIRouter(prefix="/v1/admin/log", tags=["admin"], responses=failures(401, 403, 503))


class LogQuery(StrictModel):
    after: Annotated[int, Field(ge=0, lt=2**62)] | None = None
    """The `id` of the last entry of the previous page."""
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100


@router.get("", operation_id="readAdminLog")
def read(admin: AdminDep, query: Annotated[LogQuery, Query()]) -> AdminLogPage:
    """Return operators' changes, newest first; entries are never deleted."""
    rows = entries(admin.session, before_id=query.after, limit=query.limit + 1)
    data = [AdminEntryObject.of(entry) for entry in rows[: query.limit]]
    return AdminLogPage(data=data, has_more=len(rows) > query.limit)
