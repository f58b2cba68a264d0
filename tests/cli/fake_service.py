"""A service in memory, as the client of a command sees it: it answers each line of a batch at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

Line = dict[str, Any]


@dataclass(slots=True)
class FakeClient:
    """Files and batches by id. `answer` returns the result of a line."""

    answer: Callable[[Line], Line]
    stored: dict[str, Any] = field(default_factory=dict)
    num_batches: int = 0
    _by_key: dict[str, str] = field(default_factory=dict)
    base_url: str = "fake"

    @property
    def files(self) -> Any:
        return SimpleNamespace(
            create=self._upload,
            list=lambda **_: [one for one in self.stored.values() if hasattr(one, "filename")],
            delete=self.stored.pop,
            with_streaming_response=SimpleNamespace(content=self._content),
        )

    @property
    def batches(self) -> Any:
        return SimpleNamespace(create=self._run)

    def with_options(self, **_: object) -> FakeClient:
        return self

    def delete(self, path: str, **_: object) -> None:
        batch = self.stored.pop(path.rpartition("/")[2])
        self._by_key = {key: batch_id for key, batch_id in self._by_key.items() if batch_id != batch.id}
        for file_id in (batch.output_file_id, batch.error_file_id):
            del self.stored[file_id]

    def _upload(self, *, file: Any, **_: object) -> Any:
        name, stream = file
        content = b""
        while part := stream.read(100):
            content += part
        return self._store("file", filename=name, content=content)

    def _store(self, kind: str, **values: Any) -> Any:
        stored_id = f"{kind}_{len(self.stored)}{self.num_batches}"
        self.stored[stored_id] = SimpleNamespace(id=stored_id, **values)
        return self.stored[stored_id]

    @contextmanager
    def _content(self, file_id: str) -> Iterator[Any]:
        yield SimpleNamespace(iter_bytes=lambda: iter([self.stored[file_id].content]))

    def _run(self, *, input_file_id: str, extra_headers: dict[str, str], **call: Any) -> Any:
        key = extra_headers["Idempotency-Key"]
        if key in self._by_key:
            return self.stored[self._by_key[key]]
        self.num_batches += 1
        lines = [json.loads(raw) for raw in self.stored[input_file_id].content.splitlines()]
        results = [{"custom_id": line["custom_id"], **self.answer(line)} for line in lines]
        files = {
            name: self._store("file", filename=f"{name}.jsonl", content=_jsonl(results, is_error=is_error)).id
            for name, is_error in (("output_file_id", False), ("error_file_id", True))
        }
        window = call["completion_window"]
        batch = self._store("batch", status="completed", input_file_id=input_file_id, completion_window=window, **files)
        self._by_key[key] = batch.id
        return batch


def _jsonl(results: list[Line], *, is_error: bool) -> bytes:
    return b"".join(json.dumps(result).encode() + b"\n" for result in results if ("error" in result) is is_error)
