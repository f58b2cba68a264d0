"""An engine of your own behind a worker: it answers with the prompt's words in reverse.

python examples/own_engine.py 8100 & tokenmill up --engine openai --url http://127.0.0.1:8100
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "reverse"


def generate(prompt: str, *, max_tokens: int) -> tuple[str, str, int]:
    """Return an answer's text, why it ended, and its tokens, which are words here."""
    words = prompt.split()[::-1]
    reason = "length" if len(words) > max_tokens else "stop"
    return " ".join(words[:max_tokens]), reason, min(len(words), max_tokens)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(200, {"data": [{"id": MODEL, "max_model_len": 4096}]})
        else:
            self.reply(404, {"error": {"message": f"there is no {self.path}"}})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.reply(404, {"error": {"message": f"there is no {self.path}"}})
        elif asked.get("n", 1) != 1:
            self.reply(400, {"error": {"message": "this engine gives one answer"}})
        else:
            self.reply(200, self.answer(asked, asked["messages"][-1]["content"]))

    def answer(self, asked: dict[str, Any], prompt: str) -> dict[str, Any]:
        text, reason, num_tokens = generate(prompt, max_tokens=asked.get("max_tokens", 1024))
        return {
            "id": self.headers.get("X-Request-Id", ""),
            "model": MODEL,
            "choices": [{"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": text}}],
            "usage": {"prompt_tokens": len(prompt.split()), "completion_tokens": num_tokens},
        }

    def reply(self, status: int, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
