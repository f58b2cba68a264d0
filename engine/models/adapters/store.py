"""The adapters of a loaded model, read when a request first names them."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from engine.errors import InvalidRequestError, ModelLoadError
from engine.models.adapters.adapter import Adapter
from engine.models.adapters.files import CANNOT_BE_USED, identity_of, read_adapter
from engine.models.config import CheckpointConfig, ModelConfig

MOST_KEPT = 16
"""Adapters that stay in memory without a request; those of waiting and running requests stay in any case."""


class AdapterStore:
    """Adapters by folder. A folder whose files have changed is read anew; requests keep what they began with."""

    def __init__(self, config: CheckpointConfig, *, dtype: torch.dtype, device: torch.device) -> None:
        self._config, self._dtype, self._device = config, dtype, device
        self._in_use: WeakValueDictionary[str, Adapter] = WeakValueDictionary()
        self._kept: OrderedDict[str, Adapter] = OrderedDict()  # by folder, the least recently named first

    @property
    def is_empty(self) -> bool:
        """Whether none is in memory."""
        return not self._in_use

    def get(self, folder: str) -> Adapter:
        """Return an adapter. Raises InvalidRequestError if it cannot be read, or does not fit the model."""
        path = Path(folder)
        try:
            adapter = self._in_use.get(identity_of(path)) or self._read_with_room(path)
        except ModelLoadError as error:
            raise InvalidRequestError(f"{CANNOT_BE_USED}{error}") from None
        self._kept[folder] = adapter
        self._kept.move_to_end(folder)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return adapter

    def _read_with_room(self, folder: Path) -> Adapter:
        try:
            return self._read(folder)
        except torch.cuda.OutOfMemoryError:
            self._kept.clear()
        try:
            return self._read(folder)
        except torch.cuda.OutOfMemoryError:
            raise ModelLoadError(
                f"{folder} does not fit beside the model and its cache; lower gpu_memory_share or max_num_seqs."
            ) from None

    def _read(self, folder: Path) -> Adapter:
        files = read_adapter(folder, self._config)
        assert isinstance(self._config, ModelConfig), "read_adapter refuses others"
        adapter = Adapter(files, self._config, dtype=self._dtype, device=self._device)
        if identity_of(folder) != files.identity:
            raise ModelLoadError(f"{folder} has changed while it was read; replace a folder by renaming a whole one.")
        return self._in_use.setdefault(files.identity, adapter)
