"""Extractions and indexes of generated documents, and batches that take passages from an index."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import Any

from lab.chaos import checked_batches
from lab.chaos.flows.place import FlowOutcome, Library, Place
from lab.chaos.stack import EMBEDDER, MODEL
from lab.no_compute.stated import stating

_CANCELLED_AFTER_SECONDS = 1.0
_CHAT = "/v1/chat/completions"
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}
_NUM_PARAGRAPHS, _LIBRARY_DOCUMENTS = 3, 4
_FILLER = "the river runs past the old mill and the miller looks at the water and waits for rain"


def extract(place: Place, name: str, rng: Random) -> FlowOutcome:
    """Extract one field from documents that state it; some cannot be read."""
    papers = {f"{name}-{number}.txt": f"paper {number} of {name}" for number in range(rng.randrange(1, 6))}
    contents = {title: _paper(value) for title, value in papers.items()}
    if rng.random() < 0.2:
        contents[f"{name}-empty.txt"] = b""
    asked = {
        "collection_id": _collection(place, name, contents),
        "schema": _SCHEMA,
        "model": MODEL,
        "logprobs": False,
        "second_reading": rng.random() < 0.2,
    }
    ended = _made(place, "extractions", name, asked, is_cancelled=rng.random() < 0.1)
    problems = list(_wrong_records(place, ended, papers, list(contents))) if ended["status"] == "completed" else []
    return _outcome(place, "extraction", ended, len(contents), problems)


def index(place: Place, name: str, rng: Random) -> FlowOutcome:
    """Index documents, and find each paragraph by a word that only it has."""
    ended, texts = _build(place, name, num_documents=rng.randrange(1, 4), has_vectors=rng.random() < 0.5)
    problems = []
    if ended["status"] == "completed":
        problems = [problem for title in texts for problem in _wrong_passages(place, ended["id"], title)]
        if ended["num_without_vector"]:
            problems.append(f"{ended['num_without_vector']} passages have no vector")
    return _outcome(place, "index", ended, len(texts), problems)


def ask_library(place: Place, name: str, rng: Random) -> FlowOutcome:
    """Run a batch whose prompts take a passage of the tenant's index; check the answers and whose passage it was."""
    library = _library(place)
    chosen = {f"{name}-{number}": rng.choice(library.titles) for number in range(rng.randrange(1, 6))}
    lines = (_question(library.index_id, custom_id, title) for custom_id, title in chosen.items())
    content = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
    batch_id = checked_batches.submit_content(place.client, content, endpoint=_CHAT, key=name)
    batch = checked_batches.until_ended(place.client, batch_id)
    output, errors = checked_batches.contents(place.client, batch)
    found = [(row["custom_id"], *_cited(row["response"]["body"])) for row in map(json.loads, output.splitlines())]
    expected = [(custom_id, f"answer {custom_id}", [title]) for custom_id, title in chosen.items()]
    problems = [] if sorted(found) == sorted(expected) else [f"it answers {found}, not {expected}; {errors[:300]!r}"]
    return _outcome(place, "passages", batch, len(chosen), problems)


def _library(place: Place) -> Library:
    """Return the tenant's index, which the first caller builds."""
    with place.building:
        if place.library is None:
            built, texts = _build(place, f"library {place.tenant}", num_documents=_LIBRARY_DOCUMENTS, has_vectors=True)
            place.library = Library(index_id=built["id"], titles=list(texts))
    return place.library


def _build(
    place: Place, name: str, *, num_documents: int, has_vectors: bool
) -> tuple[dict[str, Any], Mapping[str, bytes]]:
    """Build an index to its end; return it and its documents by their names."""
    texts = {f"{name}-{number}.txt": _text(f"{name}-{number}.txt") for number in range(num_documents)}
    asked = {"collection_id": _collection(place, name, texts), "max_tokens": 32, "overlap_tokens": 0}
    return _made(place, "indexes", name, asked | ({"embedding_model": EMBEDDER} if has_vectors else {})), texts


def _made(
    place: Place, kind: str, name: str, asked: Mapping[str, Any], *, is_cancelled: bool = False
) -> dict[str, Any]:
    """Create a flow once, however often the call is repeated; return it once it has ended."""
    made = place.client.call("POST", f"/{kind}", json=asked, headers={"Idempotency-Key": name})
    path = f"/{kind}/{made['id']}"
    if is_cancelled:
        time.sleep(_CANCELLED_AFTER_SECONDS)
        place.client.call("POST", f"{path}/cancel", is_done=(409,))
    return place.client.ended(path, lambda flow: flow["ended_at"] is not None)


def _collection(place: Place, name: str, contents: Mapping[str, bytes]) -> str:
    data = {"purpose": "user_data"}
    ids = [
        place.client.call("POST", "/files", data=data, files={"file": (title, content)})["id"]
        for title, content in contents.items()
    ]
    made: str = place.client.call("POST", "/collections", json={"name": name})["id"]
    place.client.call("POST", f"/collections/{made}/documents", json={"file_ids": ids})
    return made


def _paper(value: str) -> bytes:
    answer = json.dumps({"name": {"value": value, "quote": value}})
    return f"This is {value}.\n\n{stating(answer)}\n".encode()


def _text(title: str) -> bytes:
    return "\n\n".join(f"{word} {_FILLER}." for word in _words(title)).encode()


def _words(title: str) -> Sequence[str]:
    """Return a word for each paragraph of a document, which is nowhere else."""
    own = "".join(character for character in title.removesuffix(".txt") if character.isalnum())
    return [f"{own}p{number}" for number in range(_NUM_PARAGRAPHS)]


def _wrong_records(
    place: Place, ended: Mapping[str, Any], papers: Mapping[str, str], titles: Sequence[str]
) -> Iterator[str]:
    content = place.client.raw(f"/extractions/{ended['id']}/results?after=0&limit=1000")
    records = [json.loads(line) for line in content.splitlines()]
    if [record["document"] for record in records] != list(titles):
        yield f"it has records of {[record['document'] for record in records]}, not of {list(titles)}"
        return
    for record in records:
        if record["error"] is not None and place.may_refuse(record["error"]["message"]):
            continue
        expected = papers.get(record["document"])
        fields = record["fields"] and record["fields"]["name"]
        if fields != expected:
            yield f"{record['document']} has {fields!r}, {record['error']}, not {expected!r}"


def _wrong_passages(place: Place, index_id: str, title: str) -> Iterator[str]:
    for word in _words(title):
        path = f"/indexes/{index_id}/search?query={word}&mode=bm25&top_k=10"
        found = [each for each in place.client.call("GET", path)["data"] if word in each["text"].split()]
        if [each["document"] for each in found] != [title]:
            yield f"word {word} of {title} is in {len(found)} passages: {found}"


def _question(index_id: str, custom_id: str, title: str) -> dict[str, Any]:
    messages = [
        {"role": "system", "content": "Answer from these passages.\n\n{{context}}"},
        {"role": "user", "content": stating(f"answer {custom_id}")},
    ]
    context = {"index": index_id, "query": _words(title)[0], "max_tokens": 64, "top_k": 1}
    body = {"model": MODEL, "messages": messages, "max_tokens": 64, "context": context}
    return {"custom_id": custom_id, "method": "POST", "url": _CHAT, "body": body}


def _cited(body: Mapping[str, Any]) -> tuple[str, list[str]]:
    passages = [passage["document"] for passage in body["context"]["passages"]]
    return body["choices"][0]["message"]["content"], passages


def _outcome(
    place: Place, recipe: str, ended: Mapping[str, Any], num_items: int, problems: Sequence[str]
) -> FlowOutcome:
    status, reason = str(ended["status"]), str(ended.get("reason") or ended.get("errors"))
    if status not in ("completed", "cancelled") and not place.may_refuse(reason):
        problems = [*problems, f"it is {status}: {reason}"]
    return FlowOutcome(recipe=recipe, flow_id=ended["id"], status=status, num_items=num_items, problems=problems)
