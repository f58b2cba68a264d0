"""Isolation layers that confine readers of documents on this machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from confined.isolation import ESSENTIAL, LAYERS, REMEDIES, Layer
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
    def has_gap(self) -> bool:
        """Tell whether a layer is missing that no other covers."""
        return bool(self.missing & ESSENTIAL)

    @property
    def present(self) -> str:
        """Return the names of the layers that are present."""
        return ", ".join(layer for layer in LAYERS if layer not in self.missing) or "nothing"

    @property
    def lacks(self) -> str:
        """Return the missing layers, with what each gives."""
        return "; ".join(f"{layer}: {gives}" for layer, gives in LAYERS.items() if layer in self.missing)

    @property
    def remedy(self) -> str:
        """Return what to do to have the missing layers, as a sentence."""
        if sys.platform != "linux":
            return f"Run prepare workers on Linux; {sys.platform} has no such layers."
        remedies = "; ".join(f"for {layer}, {remedy}" for layer, remedy in REMEDIES.items() if layer in self.missing)
        return f"{remedies[:1].upper()}{remedies[1:]}."
