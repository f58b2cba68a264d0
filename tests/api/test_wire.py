"""Tests of what the wire's objects have in common."""

from __future__ import annotations

import inspect

import pytest

from api.schemas.wire import ListedObject, Page


class Listed(ListedObject):
    pass


class PageOfItsOwn(Page[Listed]):
    num_more: int
    """How many follow."""


def test_a_list_type_has_its_fields_described_and_looks_for_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(ListedObject):
        pass

    def look(_: object) -> None:
        raise AssertionError("it goes through every module that is loaded")

    monkeypatch.setattr(inspect, "getmodule", look)
    assert Page[Other].model_fields["has_more"].description == "Whether another page with at least one object follows."


def test_a_class_made_of_a_list_type_has_its_own_fields_described() -> None:
    assert PageOfItsOwn.model_fields["num_more"].description == "How many follow."
    assert PageOfItsOwn.model_fields["last_id"].description == "The `after` of the next page."
