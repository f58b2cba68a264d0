"""The object store: access, objects, ownership, and contents other than files.

No access rights of tenants are checked here. Other packages use `Storage`.
"""

from __future__ import annotations

from jobs.storage.object_writer import ObjectWriter
from jobs.storage.objects import Storage, StoredObject

__all__ = ["ObjectWriter", "Storage", "StoredObject"]
