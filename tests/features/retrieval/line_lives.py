"""Lives of a batch whose prompts get passages: its owner has an index with vectors, and one of words alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session, sessionmaker

from features.retrieval import lifecycle
from features.retrieval.purging import purge_indexes
from features.retrieval.tables import PassageIndex
from jobs.storage import Storage
from tests.features.retrieval.stored_indexes import add_index
from tests.workers.owners import AtMoment, Moment, Owner, chat_line
from tests.workers.whole_service import Service

TEXTS = {"cats": ["Cats purr at night."], "dogs": ["Dogs bark at night."]}
VECTORS = [[1.0, 0.0], [0.0, 1.0]]
QUESTIONS = {"a": "cats", "b": "dogs"}
"""By the custom_ids of their lines; each is the name of the document that answers it."""
PLAIN = "plain"
"""The line without a question."""
ANSWERED = {custom_id: [document] for custom_id, document in QUESTIONS.items()} | {PLAIN: None}
ANSWERED_TOO = {f"{custom_id}, too": [document] for custom_id, document in QUESTIONS.items()}
"""What answers cite: by words, and by words and vectors."""


class Life:
    """One batch of an owner: two questions by words and a line without one; with `embeds` two by words and vectors."""

    def __init__(self, service: Service, name: str, *, embeds: bool, follows: bool) -> None:
        """With `follows` the batch starts after an earlier one, which has one line."""
        self.service, self.owner = service, Owner(service, name)
        self.indexes = [self._add_index()]
        lines = [_question(custom_id, self.indexes[0], query) for custom_id, query in QUESTIONS.items()]
        lines.append(chat_line(PLAIN, "no question"))
        if embeds:
            self.indexes.append(self._add_index(vectors=[VECTORS]))
            lines += [_question(f"{custom_id}, too", self.indexes[1], query) for custom_id, query in QUESTIONS.items()]
        earlier = self.owner.submit([chat_line(PLAIN, "hello")], name="earlier") if follows else None
        self.batch_id = self.owner.submit(lines, after=earlier)

    def finish_with(self, act: Callable[[], None], moment: Moment) -> None:
        """Let the service work until the batch has ended, and act at a moment, while a worker is at it."""
        effects = AtMoment(self.owner, moment, act)
        self.service.finish(effects)
        assert effects.has_acted, moment

    def documents(self) -> dict[str, Any]:
        """Return the documents that each line's answer cites, None without passages, or the code of its error."""
        return {custom_id: _cited(result) for custom_id, result in self.owner.results("batch").items()}

    def delete_indexes(self) -> None:
        with self.service.maker.begin() as session:
            for index in self.indexes:
                lifecycle.delete_index(session, self.owner.tenant.id, index.id, by="tenant")
        purge_indexes(self.service.maker, self.service.storage)

    def record(self) -> Any:
        """Return everything that the owner sees, comparable with another life's."""
        return self.owner.record(*(index.id for index in self.indexes))

    def _add_index(self, **vectors: Any) -> PassageIndex:
        with self.service.maker() as session:
            return add_index(session, self.service.storage, self.owner.tenant, [TEXTS], **vectors)


class Lives:
    """Lives in one service, one after another."""

    def __init__(self, maker: sessionmaker[Session], storage: Storage) -> None:
        self.service = Service(maker, storage)
        self._lives: list[Life] = []

    def new(self, *, embeds: bool = False, follows: bool = False) -> Life:
        life = Life(self.service, f"owner {len(self._lives)}", embeds=embeds, follows=follows)
        self._lives.append(life)
        return life

    def check(self) -> None:
        """Check the ends of all lives, and that after the sweep the store has the objects of files, and no others."""
        self.service.check(storage=self.service.storage)
        self.service.purge()
        self.service.sweep()
        for life in self._lives:
            life.owner.check_ends()
            named, stored = life.owner.objects()
            assert stored == named


def _question(custom_id: str, index: PassageIndex, query: str) -> dict[str, Any]:
    """Return a line that gets the best passage for a query."""
    wanted = {"index": index.id, "query": query, "top_k": 1}
    return chat_line(custom_id, "{{context}}", context=wanted)


def _cited(result: Any) -> Any:
    if isinstance(result, str) or result["context"] is None:
        return result if isinstance(result, str) else None
    return [passage["document"] for passage in result["context"]["passages"]]
