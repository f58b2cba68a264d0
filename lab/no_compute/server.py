"""An OpenAI-compatible server that computes nothing, on a unix socket: `python -m lab.no_compute.server SOCKET FOLDER`.

It answers a prompt with the prompt's own text and the end token, after a pause, as the engine of this package does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lab.no_compute import SERVER_SECONDS

MODEL = "echo"
_MAX_MODEL_LEN = 1024


class EchoServer:
    """Answers the requests of any number of connections."""

    def __init__(self, tokenizer: Tokenizer, *, seconds: float) -> None:
        self._tokenizer = tokenizer
        self._seconds = seconds

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                method, path, body = await _request(reader)
                status, value = await self._answer(method, path, body)
                content = json.dumps(value).encode()
                writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async def _answer(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        if (method, path) == ("GET", "/v1/models"):
            return "200 OK", {"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": _MAX_MODEL_LEN}]}
        if (method, path) != ("POST", "/v1/completions"):
            return "404 Not Found", {"error": {"message": f"there is no {path}"}}
        await asyncio.sleep(self._seconds)
        return "200 OK", self._completion(body["prompt"], max_tokens=body["max_tokens"])

    def _completion(self, prompt: str | list[int], *, max_tokens: int) -> Mapping[str, Any]:
        token_ids = self._tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        is_whole = len(token_ids) < max_tokens
        num_tokens = len(token_ids) + 1 if is_whole else max_tokens
        return {
            "model": MODEL,
            "choices": [
                {
                    "index": 0,
                    "text": self._tokenizer.decode(token_ids[:max_tokens]),
                    "finish_reason": "stop" if is_whole else "length",
                }
            ],
            "usage": {"prompt_tokens": len(token_ids), "completion_tokens": num_tokens},
        }


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, Mapping[str, Any]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    content = await reader.readexactly(int(headers.get("content-length", 0)))
    return method, path, json.loads(content) if content else {}


async def main(socket: str, folder: str) -> None:
    """Serve until the process ends."""
    tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    server = EchoServer(tokenizer, seconds=float(os.environ[SERVER_SECONDS]))
    async with await asyncio.start_unix_server(server.serve, socket) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
