"""The records of an extraction, and those of `tokenmill extract` for the same documents and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import orjson
from sqlalchemy.orm import Session

from cli.extracting.known import read_examples
from cli.extracting.prepared import ParseCache
from cli.extracting.running import records, run_batches
from cli.extracting.work import folder_of
from cli.places.session import Session as PlaceSession
from cli.places.stage import Stage as PlaceStage
from features.documents import lifecycle
from features.documents.tables import Extraction
from jobs.storage import Storage
from jobs.tables import File
from tests.features.documents.answering import LineFailure, completion


def records_of(session: Session, storage: Storage, extraction: Extraction) -> list[dict[str, Any]]:
    session.refresh(extraction)
    assert extraction.output_file_id is not None, extraction.reason
    key = session.get_one(File, extraction.output_file_id).object_key
    return [orjson.loads(line) for line in b"".join(storage.iter_chunks(key)).splitlines()]


class LocalModel:
    """Answers the lines of a stage of `tokenmill extract` as on the server."""

    def run(self, stage: PlaceStage) -> None:
        with stage.results.answers.open("wb") as answers, stage.results.errors.open("wb") as errors:
            for raw in stage.lines.read_bytes().splitlines():
                line = orjson.loads(raw)
                said: dict[str, Any]
                try:
                    said, file = {"response": {"body": completion(line["body"])}}, answers
                except LineFailure as error:
                    said, file = {"error": {"code": "failed", "message": str(error)}}, errors
                file.write(orjson.dumps({"custom_id": line["custom_id"], **said}) + b"\n")


def embedded_records(
    extraction: Extraction, papers: Mapping[str, str], folder: Path, *, gold: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the records of `tokenmill extract` for the same documents, plan, examples and answers."""
    folder.mkdir()
    for name, content in papers.items():
        (folder / name).write_text(content)
    files = [folder / name for name in papers]
    job = lifecycle.stored_plan(extraction).job()
    known = folder / "gold.jsonl"
    known.write_text("\n".join(json.dumps({**one, "document": str(folder / one["document"])}) for one in gold))
    job = replace(job, examples=read_examples(known, job.schema, ParseCache.below(folder / "data")))
    work = folder_of(job, files, place="here", base=folder / "data", outputs=[])
    work.prepare(files, on_each=lambda: None)
    run_batches(job, work, cast(PlaceSession, LocalModel()))
    return [one | {"document": Path(one["document"]).name} for one in records(job, work)]
