"""The adapters that our engine may run in a worker: folders registered for its model that can be read here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.orm import Session, sessionmaker

from engine.errors import ModelLoadError
from engine.models.adapters.files import read_adapter
from engine.models.config import CheckpointConfig, load_model_config
from jobs import served_adapters
from jobs.database import transaction
from workers.model_files import fingerprint_of

log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
"""Pause between two looks at what is registered, and at the files of each."""


class AdapterFolders:
    """The usable folders. `look` is called by one thread, the others by any."""

    def __init__(
        self,
        sessions: sessionmaker[Session],
        *,
        model: str,
        folder: Path,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`folder` has the files of `model`."""
        self._sessions = sessions
        self._model, self._folder = model, folder
        self._monotonic = monotonic
        self._looked_at: float | None = None
        self._config: CheckpointConfig | None = None
        self._reasons: dict[str, str] = {}  # of those that cannot be used, as logged
        self._usable: frozenset[str] = frozenset()

    @property
    def usable(self) -> frozenset[str]:
        """The folders whose lines may be claimed."""
        return self._usable

    def look(self) -> frozenset[str]:
        """Return the usable folders, looked for anew if the last look is old. Raises ServiceError."""
        now = self._monotonic()
        if self._looked_at is None or now - self._looked_at >= _LOOK_SECONDS:
            with transaction(self._sessions) as session:
                folders = served_adapters.folders_of(session, self._model)
            self._usable = frozenset(filter(self.is_usable, folders))
            with transaction(self._sessions) as session:
                served_adapters.note_listed(session, self._model, self._usable)
            self._looked_at = now
        return self._usable

    def is_usable(self, folder: str) -> bool:
        """Return whether an adapter's files fit the model now; a reason is logged once."""
        try:
            if self._config is None:
                self._config = load_model_config(str(self._folder))
            read_adapter(Path(folder), self._config)
        except ModelLoadError as error:
            self._usable -= {folder}
            if self._reasons.get(folder) != str(error):
                log.warning("an adapter cannot be used model=%s reason=%s", self._model, error)
            self._reasons[folder] = str(error)
            return False
        self._reasons.pop(folder, None)
        return True

    def fingerprint(self, folder: str) -> str:
        """Return a digest of an adapter's files; empty if they are gone."""
        try:
            return fingerprint_of(Path(folder))
        except OSError:
            return ""
