"""The adapters that our engine may run in a worker: folders registered for its model that can be read here."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from sqlalchemy.orm import Session, sessionmaker

from engine.config import ModelImpl
from engine.errors import ModelLoadError
from engine.models.adapters.files import identity_of, read_adapter
from engine.models.config import CheckpointConfig, load_model_config
from jobs import served_adapters
from jobs.database import transaction
from jobs.errors import ServiceError
from jobs.ids import new_id

log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
"""Pause between two looks at what is registered, and at the files of each."""


class AdapterFolders:
    """The usable folders, looked for in a thread of its own: files may lie on a disk that hangs."""

    def __init__(
        self, sessions: sessionmaker[Session], *, model: str, folder: Path, impl: ModelImpl = ModelImpl.AUTO
    ) -> None:
        """`folder` has the files of `model`, which code of `impl` runs."""
        self._sessions = sessions
        self._model, self._folder, self._impl = model, folder, impl
        self._config: CheckpointConfig | None = None
        self._reasons: dict[str, str] = {}  # of those that cannot be used, as logged
        self._refused: dict[str, str] = {}  # by folder, the identity that the engine could not use
        self._usable: frozenset[str] = frozenset()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="adapters", daemon=True)

    @property
    def usable(self) -> frozenset[str]:
        """The folders whose lines may be claimed, as of the last look."""
        return self._usable

    def start(self) -> None:
        """Look now, and then every few seconds. Raises ServiceError."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a look that has begun is not waited for."""
        self._stop.set()

    def look(self) -> None:
        """Look for the registered folders, and offer those that can be used. Raises ServiceError."""
        with transaction(self._sessions) as session:
            folders = served_adapters.folders_of(session, self._model)
        self._usable = frozenset(filter(self._can_be_used, folders))
        if self._usable:
            with transaction(self._sessions) as session:
                served_adapters.note_listed(session, self._model, self._usable)

    def refuse(self, folder: str, reason: str) -> None:
        """Note that the engine could not use a folder: nothing of it is claimed until its files have changed."""
        self._refused[folder] = self.identity(folder)
        self._usable -= {folder}
        self._note(folder, reason)

    def identity(self, folder: str) -> str:
        """Return what tells the files of a folder from others; of missing ones another each time."""
        try:
            return identity_of(Path(folder))
        except ModelLoadError:
            return new_id("missing")

    def _look_on(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.look()
            except ServiceError as error:
                log.warning("adapters could not be looked for error=%s", error)
            except Exception:
                log.exception("adapters could not be looked for")  # the thread must survive

    def _can_be_used(self, folder: str) -> bool:
        if self._refused.get(folder) == self.identity(folder):
            return False
        try:
            if self._config is None:
                self._config = load_model_config(str(self._folder), impl=self._impl)
            read_adapter(Path(folder), self._config)
        except ModelLoadError as error:
            self._note(folder, str(error))
            return False
        except Exception as error:  # noqa: BLE001 - one folder must cost no other
            self._note(folder, f"{type(error).__name__}: {error}")
            return False
        self._reasons.pop(folder, None)
        return True

    def _note(self, folder: str, reason: str) -> None:
        if self._reasons.get(folder) != reason:
            log.warning("an adapter cannot be used model=%s folder=%s reason=%s", self._model, folder, reason)
        self._reasons[folder] = reason
