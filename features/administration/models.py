"""Operators' actions on models. A worker that registers its own model writes no log entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from jobs import served_adapters, served_models
from jobs.admin_log import Admin, Shown
from jobs.lines.endpoints import LineKind
from jobs.served_models import NewPrices
from jobs.tables import Model


def add(
    admin: Admin,
    name: str,
    path: str,
    *,
    is_checked: bool,
    serves: LineKind = LineKind.GENERATE,
    **prices: Unpack[NewPrices],
) -> Model:
    """Register a model: `jobs.served_models.add_model`."""
    model = served_models.add_model(admin.session, name, path, is_checked=is_checked, serves=serves, **prices)
    admin.note("model.add", name, tenant_id=None, after=_shown(model))
    return model


def add_adapter(
    admin: Admin,
    name: str,
    *,
    base: str,
    adapter: str,
    is_readable: Callable[[str, str], bool] = lambda base_path, folder: False,
    **prices: Unpack[NewPrices],
) -> Model:
    """Register an adapter: `jobs.served_adapters.add_adapter`."""
    model = served_adapters.add_adapter(
        admin.session, name, base=base, adapter=adapter, is_readable=is_readable, **prices
    )
    admin.note("model.add", name, tenant_id=None, after=_shown(model))
    return model


def set_prices(admin: Admin, name: str, **prices: Unpack[NewPrices]) -> Model:
    """Set prices of a model: `jobs.served_models.set_prices`."""
    model = served_models.find_model(admin.session, name)
    with admin.noting("model.set_prices", name, tenant_id=None, look=lambda: _shown(model)):
        served_models.set_prices(admin.session, name, **prices)
    return model


def remove(admin: Admin, name: str) -> None:
    """Remove a model: `jobs.served_models.remove_model`."""
    before = _shown(served_models.find_model(admin.session, name))
    served_models.remove_model(admin.session, name)
    admin.note("model.remove", name, tenant_id=None, before=before)


def _shown(model: Model) -> Shown:
    return {
        "path": model.path,
        **({} if model.base is None else {"base": model.base, "adapter": model.adapter}),
        "serves": model.serves,
        # Named as in the API, which shows the log: pico-units of a token equal micro-units of a million tokens.
        "input_price_micros": model.input_price_picos,
        "cached_input_price_micros": model.cached_input_price_picos,
        "output_price_micros": model.output_price_picos,
        "urgent_price_percent": model.urgent_price_percent,
        "bulk_price_percent": model.bulk_price_percent,
    }
