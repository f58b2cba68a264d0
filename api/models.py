"""`/v1/models`: the models that batches may name: a worker has served them once, or an operator has checked them."""

from __future__ import annotations

from fastapi import APIRouter

from api.auth import TenantDep
from api.openapi import failures
from api.schemas.models import ModelList, ModelObject
from api.services import ServicesDep
from api.sessions import SessionDep
from jobs.chunks.fleet import contexts
from jobs.served_models import find_offered, offered_models

router = APIRouter(prefix="/v1/models", tags=["models"], responses=failures(401, 403, 429, 503))


@router.get("", operation_id="listModels")
def list_all(session: SessionDep, *, _tenant: TenantDep, services: ServicesDep) -> ModelList:
    currency, longest = services.settings.currency, contexts(session)
    models = [
        ModelObject.of(model, currency=currency, max_model_len=longest.get(model.name))
        for model in offered_models(session)
    ]
    return ModelList(data=models)


# The client sends `org/name` as `org%2Fname`, which the server decodes before routing, so this is a path.
@router.get("/{name:path}", operation_id="retrieveModel", responses=failures(404))
def retrieve(name: str, session: SessionDep, *, _tenant: TenantDep, services: ServicesDep) -> ModelObject:
    model = find_offered(session, name)
    return ModelObject.of(model, currency=services.settings.currency, max_model_len=contexts(session).get(model.name))
