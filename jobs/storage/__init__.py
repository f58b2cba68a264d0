"""The object store: how it is reached, its objects, whose it is, and what is kept there besides files.

Knows no tenant's rights. `Storage` is what the rest of the code takes from here.
"""

from __future__ import annotations

from jobs.storage.objects import ObjectWriter, Storage, StoredObject

__all__ = ["ObjectWriter", "Storage", "StoredObject"]
