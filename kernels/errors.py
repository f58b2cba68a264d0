"""The error of this package: a tensor that an op does not accept."""

from __future__ import annotations


class KernelInputError(ValueError):
    """A tensor has a shape, stride, dtype or device that an op does not accept."""


def require(condition: bool, message: str) -> None:
    """Raise `KernelInputError` with `message` unless `condition` holds."""
    if not condition:
        raise KernelInputError(message)
