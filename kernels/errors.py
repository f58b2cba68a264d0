"""The one error of this package: a tensor that an op cannot take. Knows no op by name."""

from __future__ import annotations


class KernelInputError(ValueError):
    """Report a tensor whose shape, stride, dtype or device an op cannot take."""


def require(condition: bool, message: str) -> None:
    """Raise `KernelInputError` with `message` unless `condition` holds."""
    if not condition:
        raise KernelInputError(message)
