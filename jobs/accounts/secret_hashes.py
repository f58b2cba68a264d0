"""The hash by which a random secret is kept and looked up. For secrets of our own making alone, not for passwords."""

from __future__ import annotations

import hashlib


def hash_secret(secret: str) -> str:
    """Return the SHA-256 of a secret as hex: 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()
