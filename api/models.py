"""`/v1/models`: the models that batches may name."""

from __future__ import annotations

from fastapi import APIRouter

from api.auth import TenantDep
from api.openapi import failures
from api.schemas.models import ModelList, ModelObject
from api.sessions import SessionDep
from jobs.served_models import find_model, list_models

router = APIRouter(prefix="/v1/models", tags=["models"], responses=failures(401, 429, 503))


@router.get("", operation_id="listModels")
def list_all(session: SessionDep, _tenant: TenantDep) -> ModelList:
    return ModelList(data=[ModelObject.of(model) for model in list_models(session)])


# The client sends `org/name` as `org%2Fname`, which the server decodes before routing: hence a path, not a segment.
@router.get("/{name:path}", operation_id="retrieveModel", responses=failures(404))
def retrieve(name: str, session: SessionDep, *, _tenant: TenantDep) -> ModelObject:
    return ModelObject.of(find_model(session, name))
