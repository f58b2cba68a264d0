"""The hash under which random secrets are stored and looked up. Only for secrets we generate, not for passwords."""

from __future__ import annotations

import hashlib


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret as hex: 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()
