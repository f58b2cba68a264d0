"""What readers of documents are confined by on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from confined.isolation import LAYERS, REQUIRED, Layer
from confined.probe import ProbeError, missing_layers
from features.documents.extraction.errors import ExtractionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What a process was confined by that tried all layers."""

    missing: frozenset[Layer]

    @classmethod
    def probe(cls) -> Isolation:
        """Confine a process, and return what came of it. Raises ExtractionError."""
        try:
            return cls(missing=missing_layers())
        except ProbeError as error:
            raise ExtractionError(str(error)) from None

    @property
    def is_sufficient(self) -> bool:
        """Tell whether nothing is missing that `required` asks for."""
        return not self.missing & REQUIRED

    @property
    def present(self) -> str:
        """Return the names of the layers that there are."""
        return ", ".join(layer for layer in LAYERS if layer not in self.missing) or "nothing"

    @property
    def lacks(self) -> str:
        """Return the layers that there are not, with what each needs."""
        return "; ".join(f"{layer}: {needs}" for layer, needs in LAYERS.items() if layer in self.missing)
