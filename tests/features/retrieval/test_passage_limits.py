"""Tests of counting passages with a model's tokenizer: which one, the maximum of tokens, and keeping the tokenizer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session, sessionmaker

from features.documents.extraction.passages.token_count import TokenCount
from features.retrieval.creating import CreateIndex
from features.retrieval.objects import read_segment
from features.retrieval.purging import sweep_index_objects
from features.retrieval.tables import IndexSegment, PassageIndex
from jobs import served_models
from jobs.errors import ConflictError, InputError, NotFoundError
from jobs.storage import Storage, store_owner, tokenizers
from jobs.storage.tokenizers import ModelTokenizer
from tests.features.documents.extraction.passages.builders import byte_tokenizer, word_tokenizer
from tests.features.retrieval.answering import IndexAnswering

MakeIndex = Callable[..., PassageIndex]
Run = Callable[[PassageIndex], PassageIndex]
Keep = Callable[[str, bytes], str]

PAPERS = {"boats.md": "# Ferries\n\n" + "The ferry leaves the harbour at nine, and again at ten. " * 20}
DAY = timedelta(days=1)


@pytest.fixture
def keep(session: Session, storage: Storage) -> Keep:
    """Store and record the tokenizer of a model, as its worker does; committed."""

    def keep(model: str, content: bytes) -> str:
        sha256 = tokenizers.keep(storage, content)
        tokenizers.note_tokenizer(session, model, ModelTokenizer(sha256=sha256, num_special_tokens=2))
        session.commit()
        return sha256

    return keep


@pytest.fixture
def chat(session: Session) -> str:
    served_models.add_model(session, "chat", "/models/c")
    session.commit()
    return "chat"


def counts_of(session: Session, storage: Storage, index: PassageIndex) -> list[int]:
    """Return the tokens of all passages of an index of one segment."""
    key = session.query(IndexSegment.object_key).filter_by(index_id=index.id).scalar()
    segment = read_segment(storage, str(key)).segment
    return [segment.place(row).num_tokens for row in range(segment.num_rows)]


def test_an_index_is_cut_by_the_tokens_of_the_model_that_embeds(
    make_index: MakeIndex, run: Run, model: str, keep: Keep, session: Session, storage: Storage,
    answering: IndexAnswering,
) -> None:  # fmt: skip
    sha256 = keep(model, byte_tokenizer())
    index = run(make_index(PAPERS, embedding_model=model, max_tokens=40))
    assert (index.state, index.tokenizer_model, index.tokenizer_sha256) == ("completed", model, sha256)
    assert index.signature is not None
    assert index.signature["tokenizer_sha256"] == sha256
    count = TokenCount(byte_tokenizer())
    assert counts_of(session, storage, index) == [count(shown) for shown in answering.embedded]
    assert 30 < max(counts_of(session, storage, index)) <= 40


def test_another_model_may_count_and_without_one_two_bytes_are_a_token(
    make_index: MakeIndex, run: Run, model: str, chat: str, keep: Keep
) -> None:
    keep(model, byte_tokenizer())
    sha256 = keep(chat, word_tokenizer())
    named = run(make_index(PAPERS, embedding_model=model, tokenizer=chat))
    assert (named.tokenizer_model, named.signature["tokenizer_sha256"] if named.signature else None) == (chat, sha256)
    by_bytes = run(make_index(PAPERS))
    assert (by_bytes.tokenizer_model, by_bytes.tokenizer_sha256) == (None, None)
    assert by_bytes.signature is not None
    assert by_bytes.signature["tokenizer_sha256"] == "two bytes are a token"


def test_a_model_whose_tokenizer_nobody_kept_counts_by_bytes_unless_it_is_named(
    make_index: MakeIndex, model: str, chat: str
) -> None:
    assert make_index(PAPERS, embedding_model=model).tokenizer_model is None
    with pytest.raises(ConflictError, match="No worker has stored the tokenizer of the model 'chat'") as caught:
        make_index(PAPERS, tokenizer=chat)
    assert caught.value.code == "tokenizer_unknown"
    with pytest.raises(NotFoundError, match="'nobody' does not exist"):
        make_index(PAPERS, tokenizer="nobody")


def test_a_passage_leaves_room_for_special_tokens_and_the_prefix(
    make_index: MakeIndex, model: str, chat: str, keep: Keep
) -> None:
    keep(model, byte_tokenizer())
    unsaid: dict[str, Any] = {"max_tokens": None, "overlap_tokens": None}
    assert make_index(PAPERS, embedding_model=model, **unsaid).max_tokens == 254
    assert make_index(PAPERS, embedding_model=model, document_prefix="doc: ", **unsaid).max_tokens == 249
    with pytest.raises(InputError, match="max_tokens is 255; the model 'minilm' has room for 254 besides"):
        make_index(PAPERS, embedding_model=model, max_tokens=255)
    with pytest.raises(InputError, match="document_prefix leaves the model 'minilm' room for 4 tokens"):
        make_index(PAPERS, embedding_model=model, document_prefix="x" * 250, **unsaid)
    keep(chat, word_tokenizer())
    assert make_index(PAPERS, embedding_model=model, tokenizer=chat, max_tokens=256).max_tokens == 256


def test_what_is_not_said_of_passages_fits_the_rest(make_index: MakeIndex) -> None:
    unsaid: dict[str, Any] = {"max_tokens": None, "overlap_tokens": None}
    plain, short = make_index(PAPERS, **unsaid), make_index(PAPERS, max_tokens=64, overlap_tokens=None)
    assert [(each.max_tokens, each.overlap_tokens) for each in (plain, short)] == [(256, 32), (64, 16)]
    with pytest.raises(InputError, match="max_tokens is 8,193; a passage may have 8,192"):
        make_index(PAPERS, max_tokens=8193)


def test_what_a_call_does_not_name_has_no_part_in_its_hash() -> None:
    plain = CreateIndex(collection_id="collection_1")
    assert plain.fingerprint() == "5dc45aaba0b28bcfc009dbb6e3f8002e9c6f93aae218d0d96a7797e546c0f11b"
    assert plain.fingerprint() != CreateIndex(collection_id="collection_1", tokenizer="chat").fingerprint()
    assert plain.fingerprint() != CreateIndex(collection_id="collection_1", max_tokens=64).fingerprint()


def test_a_tokenizer_goes_once_no_model_and_no_index_that_is_built_has_it(
    session: Session, maker: sessionmaker[Session], tmp_path: Path, make_index: MakeIndex, model: str, chat: str
) -> None:
    storage = Storage(tmp_path.as_uri())
    store_owner.adopt(maker, storage)
    of_model, of_index, of_nobody = (tokenizers.keep(storage, content) for content in (b"1", b"2", b"3"))
    young = tokenizers.keep(storage, b"4")
    (tmp_path / "tokenizers" / f"{of_nobody}.json#1").write_bytes(b"a part")
    (tmp_path / "tokenizers" / "somebody's.json").write_bytes(b"another's")
    before = time.time() - 2 * DAY.total_seconds()
    for path in (tmp_path / "tokenizers").iterdir():
        if young not in path.name:
            os.utime(path, (before, before))
    tokenizers.note_tokenizer(session, model, ModelTokenizer(sha256=of_index, num_special_tokens=0))
    session.commit()
    index = make_index(PAPERS, embedding_model=model)
    tokenizers.note_tokenizer(session, model, None)
    tokenizers.note_tokenizer(session, chat, ModelTokenizer(sha256=of_model, num_special_tokens=0))
    session.commit()
    assert sweep_index_objects(maker, storage, age=DAY) == 2
    left = {path.name for path in (tmp_path / "tokenizers").iterdir()}
    assert left == {f"{of_model}.json", f"{of_index}.json", f"{young}.json", "somebody's.json"}
    session.execute(text("UPDATE flow SET state = 'failed' WHERE id = :id"), {"id": index.id})
    session.commit()
    assert sweep_index_objects(maker, storage, age=DAY) == 1


def test_a_tokenizer_that_a_worker_keeps_anew_is_not_swept_meanwhile(tmp_path: Path) -> None:
    storage = Storage(tmp_path.as_uri())
    name = f"tokenizers/{tokenizers.keep(storage, b'1')}.json"
    written = storage.find_modified_at(name)
    assert written is not None
    assert not tokenizers.is_old(storage, name, written)
    assert tokenizers.is_old(storage, name, written + timedelta(seconds=1))
    assert not tokenizers.is_old(storage, "tokenizers/gone.json", written)


def test_an_object_that_was_changed_is_no_tokenizer(storage: Storage) -> None:
    sha256 = tokenizers.keep(storage, b"one")
    storage.put(f"tokenizers/{sha256}.json", b"another")
    with pytest.raises(NotFoundError, match="is another than was written"):
        tokenizers.find(storage, sha256)
