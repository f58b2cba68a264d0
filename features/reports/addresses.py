"""Addresses of mails. Pure."""

from __future__ import annotations

import re

_MAX_ADDRESS = 254  # RFC 5321
# Neither % nor !, by which old servers route to other domains. An encoded word may stand for another address.
_ADDRESS = re.compile(r"[A-Za-z0-9.#$&'*+/=?^_`{|}~-]{1,64}@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*", re.ASCII)
_ENCODED_WORD = "=?"


def is_address(text: str) -> bool:
    """Return whether a text is one plain address, without a name."""
    return len(text) <= _MAX_ADDRESS and bool(_ADDRESS.fullmatch(text)) and _ENCODED_WORD not in text


def domain_of(address: str) -> str:
    return address.rpartition("@")[2].lower()
