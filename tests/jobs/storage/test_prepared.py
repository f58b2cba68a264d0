from __future__ import annotations

import pytest

from features.retrieval import objects
from jobs.storage import prepared

TENANT, OTHER = f"tenant_{'0' * 32}", f"tenant_{'1' * 32}"


@pytest.mark.parametrize("beginning", [f"prepared/{TENANT}", TENANT])
def test_an_index_is_named_by_its_key_wherever_its_release_put_it(beginning: str) -> None:
    key = f"{beginning}/indexes/object_{'2' * 32}"
    assert [objects.named_key(name) for name in (key, f"{key}.vectors", f"{key}.vectors#3")] == [key] * 3
    assert objects.named_key(f"{key}/x") is None


def test_a_new_index_lies_where_prepare_workers_write() -> None:
    key = objects.new_key(TENANT)
    assert key.startswith("prepared/")
    assert objects.named_key(key) == key


@pytest.mark.parametrize(
    ("key", "is_of"),
    [
        (f"{TENANT}/object_1", True),
        (f"prepared/{TENANT}/documents/a.doc", True),
        (f"{OTHER}/object_1", False),
        (f"prepared/{OTHER}/documents/a.doc", False),
        (f"prepared/{TENANT}", False),
        (f"{TENANT}0/object_1", False),
        (f"other/{TENANT}/object_1", False),
    ],
)
def test_whose_an_object_is_stands_in_its_key(key: str, is_of: bool) -> None:
    assert prepared.is_of(key, TENANT) is is_of
