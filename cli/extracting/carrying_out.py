"""Carries out an order: posts it to a service or finds it there again, follows it, and writes its outputs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from cli.calls import Calls, named
from cli.client import server_errors_as_sentences
from cli.extracting.order import Order
from cli.extracting.outputs import MostDoubtful, write_outputs, write_report
from cli.extracting.records import record_pages, text_of_document
from cli.extracting.screen import noting, print_examples, upload_progress
from cli.extracting.stored import ENDED_WITHOUT, StoredWork
from cli.extracting.tally import Tally
from cli.extracting.uploading import upload_documents
from cli.service.options import say
from cli.service.service import Service, Target, service_at
from cli.submitting.command_folder import CommandFolder
from cli.watching.patience import Patience, ask_patiently
from cli.watching.stages import until_ended
from jobs.errors import ServiceError

_REFUSALS = (400, 413)
"""Statuses of a request that is refused however often it is made."""


def carry_out(order: Order, target: Target, folder: CommandFolder, *, is_kept: bool) -> Tally:
    """Write the outputs, unless an earlier start has, and return their tally.

    What a service stores for the command is deleted then, unless `is_kept`. Raises ServiceError if the extraction ends
    without records.
    """
    with folder.held():
        tally = _written_before(order, folder)
        if tally is not None:
            say(f"{order.outputs.records} is already complete. Remove it to run again.")
            if not folder.read().stored:
                return tally
        with service_at(target, say=say) as service, server_errors_as_sentences(service.client):
            work = _Work(order=order, service=service, folder=folder)
            if tally is None:
                tally = work.write(is_kept=is_kept)
            work.delete_stored()
    return tally


def _written_before(order: Order, folder: CommandFolder) -> Tally | None:
    """Return the tally of an earlier start, if its outputs are unchanged."""
    if not folder.has_written(order.outputs.paths):
        return None
    state = folder.read()
    return Tally(num_done=state.num_answered, codes=Counter(state.failed or {}))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """An order at an open service."""

    order: Order
    service: Service
    folder: CommandFolder

    def write(self, *, is_kept: bool) -> Tally:
        """Post the order, follow its extraction, and write the outputs."""
        posted = ask_patiently(self.service.client, self._posted, on_poll=self._tend)
        ended = self._followed(posted)
        stored = [] if is_kept else [ended["collection_id"] if self.order.inputs else ended["id"]]
        if ended["status"] in ENDED_WITHOUT:
            self._delete(stored)  # nothing of it can be resumed
            self.folder.forget()
            raise ServiceError(f"the extraction is {ended['status']}: {ended['reason']}")
        tally = self._outputs(ended)
        paths, failed = self.order.outputs.paths, dict(tally.codes)
        self.folder.note_outputs(paths, stored=stored, num_answered=tally.num_done, failed=failed)
        return tally

    def delete_stored(self) -> None:
        """Delete what is noted for deletion, and forget it."""
        state = self.folder.read()
        if state.stored:
            self.folder.write(replace(state, stored=self._delete(state.stored)))

    def _delete(self, stored: list[str]) -> list[str]:
        """Delete what is stored; return the ids of what is in use, and say so."""
        from openai import ConflictError

        kept = []
        for stored_id in stored:
            try:
                self._stored.delete(stored_id)
            except ConflictError as refusal:
                say(f"{stored_id} is not deleted: {refusal.message}")
                kept.append(stored_id)
        return kept

    @property
    def _calls(self) -> Calls:
        return Calls(self.service.client)

    @property
    def _stored(self) -> StoredWork:
        return StoredWork(self._calls, self.folder.key)

    def _tend(self) -> None:
        if self.service.on_poll is not None:
            self.service.on_poll()

    def _posted(self) -> dict[str, Any]:
        """Return the extraction of this command: that of an earlier start, or a new one."""
        state = self.folder.read()
        window = state.window or self.service.window  # a repeated request must be the same
        self.folder.write(replace(state, window=window, outputs=None))
        body = {**self.order.body, "model": self.service.model, "completion_window": window}
        if not self.order.inputs:
            return self._stored.extraction(body)
        collection = self._stored.collection(f"tokenmill extract {self.order.outputs.records.name}"[:200])
        return self._of_collection(collection, body)

    def _of_collection(self, collection: dict[str, Any], body: dict[str, Any]) -> dict[str, Any]:
        """Fill the collection and extract from it; where the service refuses that, leave nothing there."""
        from openai import APIStatusError

        inputs, examples = self.order.inputs, self.order.examples
        try:
            with upload_progress(len(inputs)) as on_each:
                self._stored.fill(
                    collection,
                    inputs,
                    send=lambda documents: upload_documents(
                        self.service, documents, on_each=on_each, on_request=self._tend
                    ),
                )
            if examples is not None:
                body["examples"] = self._stored.examples(collection, examples)
            return self._stored.extraction({**body, "collection_id": collection["id"]})
        except APIStatusError as refusal:
            if refusal.status_code in _REFUSALS:
                self._delete([collection["id"]])
                self.folder.forget()
            raise

    def _followed(self, extraction: dict[str, Any]) -> dict[str, Any]:
        """Show the progress of an extraction, and return it once it has ended."""
        goes_on = f"{extraction['id']} continues. The same command waits for it again"
        try:
            return until_ended(
                self._calls,
                named("extractions", extraction["id"]),
                on_poll=self._tend,
                patience=Patience(goes_on=goes_on),
            )
        except KeyboardInterrupt:
            say(f"{goes_on}; or: tokenmill extractions cancel {extraction['id']}")
            raise

    def _outputs(self, extraction: dict[str, Any]) -> Tally:
        """Write the outputs from the records; return their tally."""
        outputs = self.order.outputs
        tally, doubtful = Tally(), MostDoubtful()
        shown: list[dict[str, Any]] = []
        passing = doubtful.passing(noting(tally.passing(self._records(extraction["id"])), shown))
        write_outputs(passing, outputs, schema=self.order.job.schema)
        if outputs.report is not None:
            write_report(outputs.report, doubtful, self._texts(extraction["collection_id"], doubtful))
        print_examples(shown)
        say(f"written to {' and '.join(map(str, outputs.paths))}")
        return tally

    def _records(self, extraction_id: str) -> Iterator[dict[str, Any]]:
        """Yield the records; a document that was not read has its digest from here."""
        digests = {one.name: one.sha256 for one in self.order.inputs}
        for page in record_pages(self._calls, extraction_id):
            for line in page.splitlines():
                record: dict[str, Any] = json.loads(line)
                yield {**record, "sha256": record["sha256"] or digests.get(record["document"], "")}

    def _texts(self, collection_id: str, doubtful: MostDoubtful) -> dict[str, str]:
        read = [one for one in doubtful.records() if one["error"] is None]
        return {one["document"]: text_of_document(self._calls, collection_id, one["document_id"]) for one in read}
