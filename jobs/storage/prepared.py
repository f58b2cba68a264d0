"""Keys of objects that prepare workers write: below one prefix, so that they need no access to the rest.

Objects written before the prefix existed lie directly below their tenant, like files, and are read there.
"""

from __future__ import annotations

PREFIX = "prepared"
OF_TENANT = rf"(?:{PREFIX}/)?(tenant_[0-9a-f]{{32}})"
"""Pattern of the start of a tenant's keys; captures the tenant."""


def below(tenant_id: str) -> str:
    """Return the key prefix of a tenant's objects written by prepare workers."""
    return f"{PREFIX}/{tenant_id}"


def is_prepared(key: str) -> bool:
    return key.startswith(f"{PREFIX}/")


def tenant_of(key: str) -> str:
    """Return the tenant of an object."""
    return key.removeprefix(f"{PREFIX}/").partition("/")[0]


def is_of(key: str, tenant_id: str) -> bool:
    """Return whether an object belongs to the tenant, prepared or not."""
    return key.startswith((f"{tenant_id}/", f"{below(tenant_id)}/"))
