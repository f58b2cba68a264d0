"""The adapters of a loaded model, read when a request first names them."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from engine.errors import InvalidRequestError, ModelLoadError
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.files import identity_of, read_adapter
from engine.models.config import CheckpointConfig, ModelConfig

MOST_KEPT = 16
"""Adapters that stay in memory without a request; those of running requests stay in any case."""


class AdapterStore:
    """Adapters by folder. A folder whose files have changed is read anew; requests keep what they began with."""

    def __init__(self, config: CheckpointConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._in_use: WeakValueDictionary[str, Adapter] = WeakValueDictionary()
        self._kept: OrderedDict[str, Adapter] = OrderedDict()  # the least recently named first

    @property
    def is_empty(self) -> bool:
        """Whether none is in memory."""
        return not self._in_use

    def get(self, folder: str) -> Adapter:
        """Return an adapter. Raises InvalidRequestError if it cannot be read, or does not fit the model."""
        path = Path(folder)
        try:
            identity = identity_of(path)
            adapter = self._in_use.get(identity) or self._read(path)
        except ModelLoadError as error:
            raise InvalidRequestError(f"The adapter cannot be used: {error}") from None
        self._in_use[adapter.identity] = self._kept[adapter.identity] = adapter
        self._kept.move_to_end(adapter.identity)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return adapter

    def _read(self, folder: Path) -> Adapter:
        files = read_adapter(folder, self._config)
        assert isinstance(self._config, ModelConfig), "read_adapter refuses others"
        return Adapter(files, self._config, dtype=self._dtype, device=self._device)
