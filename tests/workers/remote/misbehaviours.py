"""Ways in which a server may answer a line that asks for it, by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from tests.workers.remote.fake_server import Behaviour, Request, good_answer


def _content(content: bytes, *, headers: Mapping[str, str] | None = None) -> Behaviour:
    async def behave(request: Request) -> None:
        await request.answer(content, headers=headers)

    return behave


def _changed(**changes: Any) -> Behaviour:
    """Answer well, except for these fields; None leaves one out."""

    async def behave(request: Request) -> None:
        answer = {name: value for name, value in good_answer(request.body, **changes).items() if value is not None}
        await request.answer(json.dumps(answer).encode())

    return behave


def _choice(**changes: Any) -> Behaviour:
    async def behave(request: Request) -> None:
        answer = good_answer(request.body)
        answer["choices"] = [choice | changes for choice in answer["choices"]]
        await request.answer(json.dumps(answer).encode())

    return behave


def _usage(**changes: Any) -> Behaviour:
    return _changed(usage={"prompt_tokens": 7, "completion_tokens": 2} | changes)


def with_status(status: str, message: str = "no", *, headers: Mapping[str, str] | None = None) -> Behaviour:
    async def behave(request: Request) -> None:
        content = json.dumps({"error": {"message": message, "type": "t", "code": None}}).encode()
        await request.answer(content, status=status, headers=headers)

    return behave


async def hang(request: Request) -> None:
    await asyncio.sleep(3600)


async def _hang_after_the_first_byte(request: Request) -> None:
    await request.send("200 OK", {"Content-Length": "1000"}, b'{"id": ')
    await asyncio.sleep(3600)


async def _endless(request: Request) -> None:
    await request.send("200 OK", {"Connection": "close"}, b"{")
    while True:
        request.writer.write(b" " * 2**20)
        await request.writer.drain()


async def _gigabyte(request: Request) -> None:
    await request.send("200 OK", {"Content-Length": str(2**30)}, b"{")
    while True:
        request.writer.write(b" " * 2**20)
        await request.writer.drain()


async def _a_byte_at_a_time(request: Request) -> None:
    content = json.dumps(good_answer(request.body)).encode()
    await request.send("200 OK", {"Content-Length": str(len(content))}, b"")
    for byte in content:
        request.writer.write(bytes([byte]))
        await request.writer.drain()
        await asyncio.sleep(0.2)


async def _cut_off(request: Request) -> None:
    content = json.dumps(good_answer(request.body)).encode()
    await request.send("200 OK", {"Content-Length": str(len(content))}, content[:40])
    request.writer.transport.abort()


async def _no_answer(request: Request) -> None:
    request.writer.transport.abort()


async def _half(request: Request) -> None:
    await request.answer(json.dumps(good_answer(request.body)).encode()[:60])


async def _nan(request: Request) -> None:
    answer = good_answer(request.body | {"logprobs": True})
    answer["choices"][0]["logprobs"]["content"][0]["logprob"] = float("nan")
    await request.answer(json.dumps(answer).encode())


async def _well_soon(request: Request) -> None:
    await asyncio.sleep(0.05)
    await request.answer(json.dumps(good_answer(request.body)).encode())


_OTHER = "chatcmpl-tokenmill-" + "0" * 32
_MESSAGE = {"role": "assistant", "content": "So"}
_LOGPROBS = {"content": [{"token": "So", "logprob": None}]}

MISBEHAVIOURS: Mapping[str, Behaviour] = {
    "well-soon": _well_soon,
    "html": _content(b"<html>Welcome to nginx</html>", headers={"Content-Type": "text/html"}),
    "nothing": _content(b""),
    "list": _content(b"[]"),
    "half": _half,
    "utf8": _content(b'{"id": "\xff\xfe"}'),
    "gzip": _content(b"\x1f\x8b\x08\x00", headers={"Content-Encoding": "gzip"}),
    "hang": hang,
    "stall": _hang_after_the_first_byte,
    "endless": _endless,
    "gigabyte": _gigabyte,
    "slow": _a_byte_at_a_time,
    "cut": _cut_off,
    "dropped": _no_answer,
    "other-line": _changed(id=_OTHER),
    "other-model": _changed(model="another"),
    "few-choices": _changed(choices=[]),
    "many-choices": _changed(
        choices=[{"index": index, "finish_reason": "stop", "message": _MESSAGE} for index in (0, 1)]
    ),
    "misnumbered": _choice(index=3),
    "no-message": _choice(message=None),
    "no-text": _choice(message={"content": 5}),
    "bad-call": _choice(message={"content": None, "tool_calls": [{"function": {"name": "f"}}]}),
    "bad-calls": _choice(message={"content": None, "tool_calls": 5}),
    "unknown-end": _choice(finish_reason="tired"),
    "no-end": _choice(finish_reason=None),
    "nan": _nan,
    "null-logprob": _choice(logprobs=_LOGPROBS),
    "no-usage": _changed(usage=None),
    "negative-usage": _usage(completion_tokens=-5),
    "huge-usage": _usage(completion_tokens=10**9),
    "huge-prompt": _usage(prompt_tokens=10**9),
    "float-usage": _usage(prompt_tokens=7.5),
    "error-in-200": _content(b'{"error": {"message": "bad parameter", "code": 400}}'),
    "busy-in-200": _content(b'{"error": {"message": "later", "code": 429}}'),
    "redirect": with_status("302 Found", headers={"Location": "http://elsewhere/v1"}),
    "400": with_status("400 Bad Request", "top_k is wrong"),
    "422": with_status("422 Unprocessable Entity", "no such field"),
    "401": with_status("401 Unauthorized"),
    "404": with_status("404 Not Found"),
    "429": with_status("429 Too Many Requests"),
    "429-soon": with_status("429 Too Many Requests", headers={"Retry-After": "0.2"}),
    "429-year": with_status("429 Too Many Requests", headers={"Retry-After": "31536000"}),
    "429-negative": with_status("429 Too Many Requests", headers={"Retry-After": "-5"}),
    "500": with_status("500 Internal Server Error"),
    "503": with_status("503 Service Unavailable"),
    "504": with_status("504 Gateway Timeout"),
}
