"""Check the answers of a served application against a schema: route, status, type, headers and body."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Witness:
    """Stands between a server and the application; `surprises` has every undocumented answer."""

    def __init__(self, app: ASGIApp, schema: dict[str, Any]) -> None:
        self.app = app
        self.schema = schema
        self.surprises: list[str] = []
        self._templates = {path: _pattern(path) for path in self.schema["paths"]}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start: Message = {}
        body = bytearray()

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                body.extend(message.get("body", b""))
                if not message.get("more_body"):  # before the client has all of it, and its test continues
                    self.judge(scope, start, bytes(body))
            await send(message)

        await self.app(scope, receive, watch)

    def judge(self, scope: Scope, start: Message, body: bytes) -> None:
        status, headers = start["status"], Headers(raw=start["headers"])
        for problem in self._problems(scope["method"], scope["path"], status=status, headers=headers, body=body):
            self.surprises.append(f"{scope['method']} {scope['path']} → {status}: {problem}")

    def _problems(self, method: str, path: str, *, status: int, headers: Headers, body: bytes) -> Iterator[str]:
        item = next((self.schema["paths"][at] for at, found in self._templates.items() if found.fullmatch(path)), None)
        if item is None:
            return  # no operation: an unknown URL, or the schema itself
        operation = item.get("get" if method == "HEAD" else method.lower(), next(iter(item.values())))
        response = operation["responses"].get(str(status))
        if response is None:
            yield f"{operation['operationId']} documents {', '.join(operation['responses'])}"
            return
        yield from (f"has no {name}" for name in response["headers"] if name not in headers)
        media_type = headers.get("content-type", "").partition(";")[0]
        media = response.get("content", {}).get(media_type)
        if media is None and not body and "content" not in response:
            return
        if media is None:
            yield f"{media_type} is not among {list(response.get('content', {}))}"
        elif method == "HEAD":
            yield from ("has content" for _ in body[:1])
        elif media_type == "application/json":
            yield from self._mismatches(media["schema"], body)
        elif media_type == "application/x-ndjson":
            for line in body.splitlines():
                yield from self._mismatches(media["schema"]["contentSchema"], line)

    def _mismatches(self, schema: dict[str, Any], body: bytes) -> Iterator[str]:
        validator = jsonschema_rs.validator_for({**schema, "components": self.schema["components"]})
        yield from (error.message for error in validator.iter_errors(json.loads(body)))


def _pattern(template: str) -> re.Pattern[str]:
    """A model's name may contain slashes; nothing else follows it."""
    return re.compile(template.replace("{name}", ".+").replace("{", "(?P<").replace("}", ">[^/]+)"), re.DOTALL)
