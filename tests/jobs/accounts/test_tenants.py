from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from jobs import served_models
from jobs.accounts import budgets, tenants
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.tables import Tenant


def test_a_tenant_starts_with_its_weight_and_budget(session: Session) -> None:
    made = tenants.create_tenant(session, "team", weight=2.5, limit_tokens=100)
    assert tenants.find_tenant(session, "team").weight == 2.5
    assert tenants.find_tenant(session, made.id).name == "team"
    assert budgets.quota(session, made.id) == budgets.Quota(limit=100, reserved=0, spent=0)


def test_a_taken_name_is_a_conflict_and_the_transaction_goes_on(session: Session, tenant: Tenant) -> None:
    with pytest.raises(ConflictError, match="'acme' exists already"):
        tenants.create_tenant(session, "acme")
    assert [found.name for found in tenants.list_tenants(session)] == ["acme"]


@pytest.mark.parametrize(
    ("name", "weight", "limit", "said"),
    [
        (" ", 1, None, "name is empty"),
        ("a", 0, None, "weight is 0; give 0.001 to 1000"),
        ("a", 1e-308, None, "weight is 1e-308; give 0.001 to 1000"),
        ("a", 1e308, None, "weight is 1e\\+308; give 0.001 to 1000"),
        ("a", float("nan"), None, "weight is nan; give 0.001 to 1000"),
        ("a", 1, -1, "limit_tokens is -1; give 0 to 1000000000000000"),
        ("a", 1, 2**63, "limit_tokens is 9223372036854775808; give 0 to 1000000000000000"),
    ],
)
def test_a_wrong_tenant_is_refused(session: Session, name: str, weight: float, limit: int | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tenants.create_tenant(session, name, weight=weight, limit_tokens=limit)


def test_numbers_that_no_bigint_holds_are_refused_at_entry(session: Session, tenant: Tenant) -> None:
    with pytest.raises(InputError, match="give 0 to 1000000000000000"):
        budgets.set_limit(session, tenant.id, 2**63)
    for wrong in (2**63, -1):
        with pytest.raises(InputError, match=r"give 0 to 1000000\.00"):
            served_models.add_model(session, "m", "/m", input_price_picos=wrong)
    served_models.add_model(session, "m", "/m", input_price_picos=10**12)
    with pytest.raises(InputError, match=r"give 0 to 1000000\.00"):
        served_models.set_prices(session, "m", output_price_picos=2**63)


def test_an_unknown_tenant_is_not_found(session: Session) -> None:
    with pytest.raises(NotFoundError, match="tokenmill tenants create nobody"):
        tenants.find_tenant(session, "nobody")


def test_models_are_added_once_and_listed_by_name(session: Session) -> None:
    served_models.add_model(session, "org/big", "/models/big", input_price_picos=5, output_price_picos=7)
    served_models.add_model(session, "a", "hub/id")
    with pytest.raises(ConflictError, match="'a' exists already"):
        served_models.add_model(session, "a", "elsewhere")
    assert [model.name for model in served_models.list_models(session)] == ["a", "org/big"]
    assert served_models.find_model(session, "org/big").output_price_picos == 7


def test_a_local_folder_is_stored_as_its_absolute_path(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "nn").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, path in [("a", "org/nn"), ("b", "./org/nn"), ("c", "~/org/nn")]:
        served_models.add_model(session, name, path)
        assert served_models.find_model(session, name).path == str(tmp_path / "org" / "nn")
    assert served_models.put_model(session, "c", "org").path == str(tmp_path / "org")
    for elsewhere in ("org/of-the-hub", "/models/of-a-worker", "./of-a-worker"):
        assert served_models.put_model(session, "c", elsewhere).path == elsewhere


def test_putting_a_model_changes_its_path_and_keeps_its_prices(session: Session) -> None:
    served_models.add_model(session, "m", "/old", input_price_picos=5)
    assert served_models.put_model(session, "m", "/new").path == "/new"
    assert served_models.put_model(session, "n", "/n").path == "/n"
    assert (served_models.find_model(session, "m").path, served_models.find_model(session, "m").input_price_picos) == (
        "/new",
        5,
    )


def test_the_prices_of_a_model_are_set_one_by_one(session: Session) -> None:
    served_models.put_model(session, "m", "/m")
    served_models.set_prices(session, "m", input_price_picos=5, output_price_picos=7)
    served_models.set_prices(session, "m", output_price_picos=0)
    session.expire_all()
    model = served_models.find_model(session, "m")
    assert (model.path, model.input_price_picos, model.output_price_picos) == ("/m", 5, 0)


def test_prices_of_an_unknown_model_or_below_zero_are_refused(session: Session) -> None:
    with pytest.raises(NotFoundError, match="'m' does not exist"):
        served_models.set_prices(session, "m", input_price_picos=5)
    served_models.put_model(session, "m", "/m")
    with pytest.raises(InputError, match="give 0 to"):
        served_models.set_prices(session, "m", input_price_picos=5, output_price_picos=-1)


def test_an_unknown_model_is_not_found_and_the_known_are_named(session: Session) -> None:
    with pytest.raises(NotFoundError, match="known are: none yet"):
        served_models.find_model(session, "x")
    served_models.add_model(session, "m", "/m")
    with pytest.raises(NotFoundError, match="known are: m") as caught:
        served_models.find_model(session, "x")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(("name", "path", "price"), [("", "p", 0), (" m", "p", 0), ("m", " ", 0), ("m", "p", -1)])
def test_a_wrong_model_is_refused(session: Session, name: str, path: str, price: int) -> None:
    with pytest.raises(InputError):
        served_models.add_model(session, name, path, input_price_picos=price)


def test_a_tenant_is_disabled_since_the_first_time_and_enabled_again(session: Session, tenant: Tenant) -> None:
    tenants.set_disabled(session, tenant, is_disabled=True)
    since = tenant.disabled_at
    assert since is not None
    session.commit()
    tenants.set_disabled(session, tenant, is_disabled=True)
    assert tenant.disabled_at == since
    tenants.set_disabled(session, tenant, is_disabled=False)
    assert tenant.disabled_at is None
    assert tenant.enabled_at is not None
    assert tenant.enabled_at >= since
