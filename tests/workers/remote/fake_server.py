"""An OpenAI-compatible server that answers well, unless a line asks it to misbehave: `misbehave NAME [TIMES]`."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

ASKED = re.compile(r"misbehave ([\w-]+)(?: (\d+))?")
FOREVER = 10**9


@dataclass(slots=True, kw_only=True)
class Request:
    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]
    writer: asyncio.StreamWriter
    text: str
    """What tells lines apart: the last message, or the prompt."""

    async def answer(self, content: bytes, *, status: str = "200 OK", headers: Mapping[str, str] | None = None) -> None:
        head = {"Content-Type": "application/json", "Content-Length": str(len(content)), **(headers or {})}
        await self.send(status, head, content)

    async def send(self, status: str, headers: Mapping[str, str], content: bytes) -> None:
        lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self.writer.write("\r\n".join(lines).encode() + content)
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()


Behaviour = Callable[[Request], Coroutine[Any, Any, None]]


@dataclass(slots=True, kw_only=True)
class FakeServer:
    """`url` is that of its API. What it saw: `num_asked` by text, and the `headers` of the last request."""

    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "served", "max_model_len": 512}])
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)
    """Objects by path, for GET."""
    gets: dict[str, Behaviour] = field(default_factory=dict)
    """Behaviours by path, for GET."""
    tls: ssl.SSLContext | None = None
    is_sick: bool = False
    """Whether it misbehaves for every request, as 500."""
    default: str | None = None
    """The behaviour for lines that ask for none."""
    num_asked: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    bodies: dict[str, dict[str, Any]] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    num_open: int = 0
    most_open: int = 0
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _server: asyncio.Server | None = None
    _thread: threading.Thread | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _num_computing: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_listening(self) -> None:
        """Refuse connections and cut those that are open."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()

    def listen_again(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    def close(self) -> None:
        self.stop_listening()
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout=20)

    def note(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_open += 1
        self._writers.add(writer)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.num_open -= 1
            self._writers.discard(writer)
            self.note()
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(content) if content else {}
        request = Request(path=target, headers=headers, body=body, writer=writer, text=text_of(body))
        self.headers = headers
        if method == "GET":
            await self.gets.get(target, self._get)(request)
        else:
            await self._compute(request, reader)
        return not writer.is_closing()

    async def _get(self, request: Request) -> None:
        found = {"data": self.models} if request.path == "/v1/models" else self.others.get(request.path)
        if found is None:
            await request.answer(b'{"detail": "Not Found"}', status="404 Not Found")
        else:
            await request.answer(json.dumps(found).encode())

    async def _compute(self, request: Request, reader: asyncio.StreamReader) -> None:
        self.num_asked[request.text] += 1
        self.order.append(request.text)
        self.bodies[request.text] = request.body
        self._num_computing += 1
        self.most_open = max(self.most_open, self._num_computing)
        self.note()
        answer = asyncio.ensure_future(self._answer(request))
        hung_up = asyncio.ensure_future(_end_of(reader))
        try:
            await asyncio.wait({answer, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                request.close()  # a server that notices that its client has gone
            else:
                await answer
        finally:
            answer.cancel()
            hung_up.cancel()
            await asyncio.gather(answer, hung_up, return_exceptions=True)
            self._num_computing -= 1
            self.note()

    @property
    def num_computing(self) -> int:
        return self._num_computing

    async def _answer(self, request: Request) -> None:
        asked = ASKED.search(request.text)
        if self.is_sick:
            await request.answer(b'{"error": {"message": "no memory"}}', status="500 Internal Server Error")
        elif asked and self.num_asked[request.text] <= int(asked[2] or FOREVER):
            await self.behaviours[asked[1]](request)
        elif self.default is not None:
            await self.behaviours[self.default](request)
        else:
            await request.answer(json.dumps(good_answer(request.body)).encode())


async def _end_of(reader: asyncio.StreamReader) -> None:
    while not reader.at_eof():
        await asyncio.sleep(0.01)


def text_of(body: Mapping[str, Any]) -> str:
    if "messages" in body:
        return str(body["messages"][-1]["content"])
    return str(body.get("prompt", body.get("input", body.get("query"))))


def good_answer(body: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the answer of a well-behaved server to a request: two tokens a choice, and fields that are null."""
    if "input" in body or "documents" in body:
        return _pooled(body) | changes
    is_chat, num = "messages" in body, body.get("n", 1)
    prompts = body.get("prompt")
    if isinstance(prompts, list) and isinstance(prompts[0], str | list):
        num *= len(prompts)
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 1,
        "model": "served",
        "choices": [_choice(body, index, is_chat=is_chat) for index in range(num)],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2 * num, "total_tokens": 7 + 2 * num},
        "service_tier": None,
        "kv_transfer_params": None,
    }
    return answer | changes


def _pooled(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return vectors (1, place, 0, 0) or scores that grow with the place, last one first."""
    if "documents" in body:
        scores = [{"index": index, "relevance_score": index / 4} for index in range(len(body["documents"]))]
        return {"model": "served", "results": scores[::-1], "usage": {"total_tokens": 9}}
    vectors = [{"index": index, "embedding": [1.0, index, 0.0, 0.0]} for index in range(len(body["input"]))]
    return {"model": "served", "data": vectors[::-1], "usage": {"prompt_tokens": 5, "total_tokens": 5}}


def _choice(body: Mapping[str, Any], index: int, *, is_chat: bool) -> dict[str, Any]:
    text = f"You said {text_of(body)}"
    end = {"index": index, "finish_reason": "stop", "logprobs": None, "stop_reason": None}
    if not is_chat:
        return end | {"text": text}
    if body.get("logprobs"):
        scored = [{"token": "You", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
        end["logprobs"] = {"content": scored}
    return end | {"message": {"role": "assistant", "content": text, "refusal": None, "audio": None}}
