"""Reads the key of a server from its file: it stands in no argument, variable, log or table."""

from __future__ import annotations

from pathlib import Path

from jobs.errors import InputError
from workers.remote.exchange import Address
from workers.remote.identity import api_url

_MOST_KEY_BYTES = 64 * 1024


def address_of(url: str, key_file: Path | None) -> Address:
    """Return where a server is and who asks. Raise InputError for a wrong URL or key file."""
    return Address(url=api_url(url), key=_key(key_file))


def _key(path: Path | None) -> str | None:
    """Return the key in a file. Raise InputError for one that cannot be a header."""
    if path is None:
        return None
    try:
        content = path.read_bytes()[:_MOST_KEY_BYTES]
        key = content.decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise InputError(f"the key file {path} cannot be read: {reason}. Put the key alone into a file.") from None
    if not key or not key.isprintable() or " " in key:
        raise InputError(f"the key file {path} holds no key. Put the key alone into a file, on one line.")
    return key
