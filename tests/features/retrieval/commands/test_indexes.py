"""Tests of `tokenmill indexes`: create, list, show, search, delete, and refusals in one sentence."""

from __future__ import annotations

import json

import pytest

from jobs.database import connect, sessions
from jobs.errors import InputError
from jobs.storage import Storage
from tests.all_settings import Settings
from tests.cli.service import Service
from tests.features.documents.commands.collecting import collect
from tests.features.retrieval.answering import IndexAnswering
from tests.flows.advancers import indexes_of

BOATS = b"# Boats\n\n## Ferries\n\nThe ferry leaves at nine."


def build(service: Service, index_id: str) -> None:
    engine = connect(service.database)
    maker, storage, settings = sessions(engine), Storage(service.storage_url), Settings()
    answering = IndexAnswering(maker, storage, settings)
    for _stage in range(3):
        indexes_of(maker, storage, settings).advance(index_id)
        answering.work_off()
    engine.dispose()


def test_an_index_is_created_listed_shown_searched_and_deleted(service: Service) -> None:
    collection_id = collect(service, "boats.md", BOATS)
    index_id = service.run("indexes", "create", collection_id, "--language", "english").stdout.strip()
    with pytest.raises(InputError, match="cannot be searched yet"):
        service.run("indexes", "search", index_id, "ferry")
    build(service, index_id)
    service.run("indexes", "create", collection_id)
    (row,) = (line for line in service.run("indexes", "list").stdout.splitlines() if index_id in line)
    assert row.split("\t")[3:8] == ["completed", "cut", "1", "0", "2"]
    shown = json.loads(service.run("indexes", "show", index_id).stdout)
    assert shown in json.loads(service.run("indexes", "list", "--json", "--collection", collection_id).stdout)
    found = service.run("indexes", "search", index_id, "ferries", "--top-k", "1").stdout
    assert found.startswith("1. boats.md [9:46]")
    assert "  Boats\n   ## Ferries\n" in found
    assert service.run("indexes", "search", index_id, "zebra").stdout == "no passage matches\n"
    assert service.run("indexes", "delete", index_id).stdout == f"deleted {index_id}\n"
    with pytest.raises(InputError, match="No index found"):
        service.run("indexes", "show", index_id)


def test_what_cannot_be_indexed_is_a_sentence(service: Service) -> None:
    with pytest.raises(InputError, match="No collection found"):
        service.run("indexes", "create", "collection_none")
    with pytest.raises(InputError, match="overlap of 100 tokens"):
        service.run("indexes", "create", collect(service, "boats.md", BOATS), "--overlap-tokens", "100")
    with pytest.raises(InputError, match="'nobody' does not exist"):
        service.run("indexes", "create", collect(service, "boats.md", BOATS), "--tokenizer", "nobody")
