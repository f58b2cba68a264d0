"""The owner of batches in a test: what they see of their batches, files, bills and events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select

from api.schemas.batches import BatchObject
from features.webhooks.tables import WebhookDelivery
from jobs import files
from jobs.accounts import budgets, tenants, usage
from jobs.accounts.usage import GroupBy
from jobs.batches import deletion, lifecycle
from jobs.batches.submission import CreateBatch
from jobs.forecasts.outlooks import outlooks
from jobs.lines.bodies import CHAT_ENDPOINT
from jobs.lines.input_estimate import InputEstimator
from jobs.states import TERMINAL_BATCH_STATES, BatchState
from jobs.tables import File
from tests.effects import Effects, Killed
from tests.features.webhooks.builders import add_endpoint
from tests.workers.whole_service import CHAT_MODEL, Service

LIMIT_TOKENS = 100_000
_STATUSES = """
    SELECT coalesce(metadata ->> 'name', metadata ->> 'stage'), state FROM batch
    WHERE tenant_id = %s AND deleted_at IS NULL
"""
Line = Mapping[str, Any]


def chat_line(custom_id: str, prompt: str, **fields: Any) -> dict[str, Any]:
    """Return a line of a batch; keywords are fields of its body."""
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 10}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT_ENDPOINT, "body": body | fields}


class Owner:
    """A tenant of its own, with a webhook for all events."""

    def __init__(self, service: Service, name: str) -> None:
        self.service = service
        with service.maker.begin() as session:
            self.tenant = tenants.create_tenant(session, name, limit_tokens=LIMIT_TOKENS)
        with service.maker() as session:
            add_endpoint(session, self.tenant.id)

    def submit(self, lines: Sequence[Line], *, name: str = "batch", **wishes: Any) -> str:
        """Upload lines and create their batch; return its id. Its `name` is in its metadata."""
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        settings = self.service.settings
        estimator = InputEstimator(default_max_tokens=settings.default_max_tokens)
        estimator.feed(content)
        key = files.new_object_key(self.tenant.id)
        new = files.NewFile(
            object_key=key,
            filename=f"{name}.jsonl",
            purpose="batch",
            size_bytes=self.service.storage.put(key, content),
            estimate=estimator.finish(),
        )
        with self.service.maker.begin() as session:
            file = files.create_file(session, self.tenant.id, new)
            wanted = CreateBatch(
                input_file_id=file.id,
                endpoint=CHAT_ENDPOINT,
                completion_window="24h",
                metadata={"name": name},
                **wishes,
            )
            return lifecycle.create_batch(session, self.tenant, wanted, settings).id

    def cancel(self, batch_id: str) -> None:
        with self.service.maker.begin() as session:
            lifecycle.cancel_batch(session, self.tenant.id, batch_id)

    def delete(self, batch_id: str) -> None:
        with self.service.maker.begin() as session:
            deletion.delete_batch(session, self.tenant.id, batch_id, by="tenant")

    def lose(self, file_id: str) -> None:
        """Let the store lose the object of a file."""
        with self.service.maker() as session:
            self.service.storage.delete(files.get_file(session, self.tenant.id, file_id).object_key)

    def leave(self) -> None:
        """Delete the tenant; its batches go with the next purges."""
        with self.service.maker.begin() as session:
            deletion.delete_tenant(session, session.get_one(type(self.tenant), self.tenant.id), by="operator")

    def batches(self) -> dict[str, BatchObject]:
        """Return the batches by their names; what looks up passages is named after its stage."""
        with self.service.maker() as session:
            rows = lifecycle.list_batches(session, self.tenant.id, limit=100).data
            views = outlooks(session, rows)
            batches = [BatchObject.of(row, views[row.id], name=row.name, currency="EUR") for row in rows]
        named = {_name_of(batch): batch for batch in batches}
        assert len(named) == len(batches), f"two batches do the same: {[_name_of(batch) for batch in batches]}"
        return named

    def statuses(self) -> dict[str, str]:
        """Return the states of the batches by their names."""
        with self.service.maker() as session:
            rows = session.connection().exec_driver_sql(_STATUSES, (self.tenant.id,)).all()
        return dict(rows)

    def check_ends(self) -> None:
        """Check what holds for ended batches, however they have ended."""
        batches = self.batches()
        for name, batch in batches.items():
            assert batch.status in TERMINAL_BATCH_STATES
            assert len(self.results(name)) == (0 if batch.status == BatchState.FAILED else batch.request_counts.total)
        used = sum(numbers[1] + numbers[2] for numbers in self.bill().values())
        assert self.quota() == (0, used)
        assert self.events() == sorted((name, f"batch.{batch.status}") for name, batch in batches.items())

    def lines(self, batch: BatchObject) -> list[Any]:
        """Return the lines of a batch's output and error files."""
        file_ids = [file_id for file_id in (batch.output_file_id, batch.error_file_id) if file_id is not None]
        return [line for file_id in file_ids for line in self.rows(file_id)]

    def rows(self, file_id: str) -> list[Any]:
        """Return the lines of a file."""
        with self.service.maker() as session:
            key = files.get_file(session, self.tenant.id, file_id).object_key
        return [json.loads(row) for row in b"".join(self.service.storage.iter_chunks(key)).splitlines()]

    def results(self, name: str) -> dict[str, Any]:
        """Return the response's body or the error's code of each line of a batch that has ended, by custom_id."""
        lines = self.lines(self.batches()[name])
        assert len({line["custom_id"] for line in lines}) == len(lines), "a line is answered twice"
        return {line["custom_id"]: _result_of(line) for line in lines}

    def filenames(self) -> list[str]:
        """Return the names of the kept files."""
        with self.service.maker() as session:
            return [file.filename for file in files.list_files(session, self.tenant.id).data]

    def quota(self) -> tuple[int, int]:
        """Return the tokens reserved and spent."""
        with self.service.maker() as session:
            quota = budgets.quota(session, self.tenant.id)
        return quota.reserved, quota.spent

    def bill(self) -> dict[str | None, tuple[int, int, int, int]]:
        """Return what each model has answered: lines, tokens in and out, and the cost in picos; None: documents."""
        with self.service.maker() as session:
            page = usage.read_usage(session, self.tenant.id, usage.period(None, None), group_by=[GroupBy.MODEL])
        return {
            one.model: (one.num_results + one.num_document_steps, one.input_tokens, one.output_tokens, one.cost_picos)
            for one in page.data
        }

    def events(self) -> list[tuple[str, str]]:
        """Return the events of batches that are still there, by the name of the batch."""
        names = {batch.id: name for name, batch in self.batches().items()}
        with self.service.maker() as session:
            mine = select(WebhookDelivery).where(WebhookDelivery.tenant_id == self.tenant.id)
            events = [(event.event_data["id"], event.event_type) for event in session.scalars(mine)]
        return sorted((names[batch_id], kind) for batch_id, kind in events if batch_id in names)

    def record(self, *nameless: str) -> Any:
        """Return everything that the owner sees, with names in place of ids, to compare it with another life's.

        `nameless` are ids of anything but batches.
        """
        batches = self.batches()
        seen = {
            "batches": {name: _numbers_of(batch) for name, batch in batches.items()},
            "lines": {name: self.results(name) for name in batches},
            "inputs": {name: self._filled(batch) for name, batch in batches.items()},
            "files": sorted(self.filenames()),
            "bill": sorted((str(model), *numbers) for model, numbers in self.bill().items()),
            "quota": self.quota(),
            "events": self.events(),
        }
        text = json.dumps(seen, sort_keys=True)
        for name, batch in batches.items():
            text = text.replace(batch.id, name)
        for one in nameless:
            text = text.replace(one, "id")
        return json.loads(text)

    def objects(self) -> tuple[set[str], set[str]]:
        """Return the keys of the tenant's files, and of its objects in the store that are no index's."""
        mine = f"{self.tenant.id}/"
        stored = {each.name for each in self.service.storage.iter_objects() if files.is_object_key(each.name)}
        with self.service.maker() as session:
            kept = select(File.object_key).where(File.tenant_id == self.tenant.id, File.purged_at.is_(None))
            return set(session.scalars(kept)), {name for name in stored if name.startswith(mine)}

    def _filled(self, batch: BatchObject) -> list[Any] | None:
        return None if batch.filled_file_id is None else self.rows(batch.filled_file_id)


def _name_of(batch: BatchObject) -> str:
    metadata = batch.metadata or {}
    return metadata.get("name") or metadata["stage"]


def _result_of(line: Any) -> Any:
    if line["error"] is not None:
        return line["error"]["code"]
    body = line["response"]["body"]
    return body["error"]["code"] if "error" in body else body


def _numbers_of(batch: BatchObject) -> Any:
    counts, used = batch.request_counts, batch.usage
    codes = [error.code for error in batch.errors.data] if batch.errors else []
    return [
        *(batch.endpoint, batch.status, batch.model, codes, batch.after, batch.cost),
        *(counts.total, counts.completed, counts.failed, used.input_tokens, used.output_tokens),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """An effect while an owner's batches stand in given states, by their names."""

    states: dict[str, str]
    kind: str = "committed"
    number: int = 1
    """Of the effects of this kind since then."""


class AtMoment(Effects):
    """Acts once, or kills, before the effect of a moment."""

    def __init__(self, owner: Owner, moment: Moment, do: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.has_acted = False
        self._owner, self._moment, self._act = owner, moment, do
        self._num_seen = 0

    def before(self, what: str) -> None:
        if self.has_acted or what != self._moment.kind or self._owner.statuses() != self._moment.states:
            return
        self._num_seen += 1
        if self._num_seen == self._moment.number:
            self.has_acted = True
            if self._act is None:
                raise Killed(what)
            self._act()
