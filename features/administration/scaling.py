"""Operators' settings of how many workers a model may have."""

from __future__ import annotations

from dataclasses import asdict

from jobs import served_models
from jobs.admin_log import Admin, Shown
from jobs.errors import InputError
from jobs.scaling import limits as stored
from jobs.scaling.limits import Limits


def set_limits(admin: Admin, name: str, limits: Limits) -> None:
    """Set all of a model's settings for scaling. Raises NotFoundError where there is no such model, InputError for an
    adapter."""
    model = served_models.find_model(admin.session, name)
    if model.base is not None:
        raise InputError(
            f"the model {name!r} is an adapter: the workers of {model.base!r} run its lines. Scale that one.",
            param="model",
        )
    before = _shown(admin, name)
    stored.set_limits(admin.session, name, limits)
    if before != asdict(limits):
        admin.note("model.scale", name, tenant_id=None, before=before, after=asdict(limits))


def remove_limits(admin: Admin, name: str) -> None:
    """Remove a model's settings for scaling. Raises NotFoundError where it has none."""
    served_models.find_model(admin.session, name)
    before = _shown(admin, name)
    stored.remove_limits(admin.session, name)
    admin.note("model.scale", name, tenant_id=None, before=before)


def _shown(admin: Admin, name: str) -> Shown | None:
    limits = stored.limits_by_model(admin.session).get(name)
    return None if limits is None else asdict(limits)
