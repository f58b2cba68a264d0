"""Where in the object store lies what prepare workers write: below one prefix, so that the rest may be closed to them.

What was prepared before there was the prefix lies below its tenant alone, as files do, and is read there.
"""

from __future__ import annotations

PREFIX = "prepared"
OF_TENANT = rf"(?:{PREFIX}/)?(tenant_[0-9a-f]{{32}})"
"""A pattern: how keys of a tenant begin, and the tenant."""


def below(tenant_id: str) -> str:
    """Return what the keys of a tenant begin with that a prepare worker writes."""
    return f"{PREFIX}/{tenant_id}"


def is_prepared(key: str) -> bool:
    return key.startswith(f"{PREFIX}/")


def tenant_of(key: str) -> str:
    """Return whose object this is."""
    return key.removeprefix(f"{PREFIX}/").partition("/")[0]


def is_of(key: str, tenant_id: str) -> bool:
    """Tell whether an object is the tenant's: one that was prepared, or any other."""
    return key.startswith((f"{tenant_id}/", f"{below(tenant_id)}/"))
