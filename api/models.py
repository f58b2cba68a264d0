"""`/v1/models`: the models that batches may name: no worker has to run just now, but one has, or an operator looked."""

from __future__ import annotations

from fastapi import APIRouter

from api.auth import TenantDep
from api.openapi import failures
from api.schemas.models import ModelList, ModelObject
from api.services import ServicesDep
from api.sessions import SessionDep
from jobs.served_models import find_offered, offered_models

router = APIRouter(prefix="/v1/models", tags=["models"], responses=failures(401, 429, 503))


@router.get("", operation_id="listModels")
def list_all(session: SessionDep, *, _tenant: TenantDep, services: ServicesDep) -> ModelList:
    currency = services.settings.currency
    return ModelList(data=[ModelObject.of(model, currency=currency) for model in offered_models(session)])


# The client sends `org/name` as `org%2Fname`, which the server decodes before routing: hence a path, not a segment.
@router.get("/{name:path}", operation_id="retrieveModel", responses=failures(404))
def retrieve(name: str, session: SessionDep, *, _tenant: TenantDep, services: ServicesDep) -> ModelObject:
    return ModelObject.of(find_offered(session, name), currency=services.settings.currency)
