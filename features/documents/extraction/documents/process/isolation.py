"""Isolation layers that confine readers of documents on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from confined.isolation import LAYERS, REQUIRED, Layer
from confined.probe import ProbeError, missing_layers
from features.documents.extraction.errors import ExtractionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """The result of a process that tried to apply all layers."""

    missing: frozenset[Layer]

    @classmethod
    def probe(cls) -> Isolation:
        """Confine a process, and return the result. Raises ExtractionError."""
        try:
            return cls(missing=missing_layers())
        except ProbeError as error:
            raise ExtractionError(str(error)) from None

    @property
    def is_sufficient(self) -> bool:
        """Tell whether all layers of `REQUIRED` are present."""
        return not self.missing & REQUIRED

    @property
    def present(self) -> str:
        """Return the names of the layers that are present."""
        return ", ".join(layer for layer in LAYERS if layer not in self.missing) or "nothing"

    @property
    def lacks(self) -> str:
        """Return the missing layers, with what each needs."""
        return "; ".join(f"{layer}: {needs}" for layer, needs in LAYERS.items() if layer in self.missing)
