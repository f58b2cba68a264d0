"""A server whose every capability answers as a test says: as it should, as if not asked, refused, late, never.

`uncounted` gives two choices and counts the first, `cut` ends an answer of a form after half of it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.workers.remote.fake_server import FakeServer, Request
from workers.remote.probing.probes import COUNTING, LETTERS

_MEANT = ("yes", "uncounted", "cut")
COUNTED = "1, 2, 3, 4, 5, 6,"
LETTERED = "q w e r t y"
FAVOURED = " row"
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
SHAPED = {"json": '{"ok": true}', "json_object": "{}", "echo": "One two three four", "choice": "plum", "regex": "123"}


@dataclass(slots=True)
class Able:
    """What each capability does, by its name: `yes` unless it is given; `plain` is all that is asked of none."""

    modes: dict[str, str] = field(default_factory=dict)
    counts_usage: bool = True
    thinks: bool = False
    prompt_tokens: int = 20
    chance: random.Random = field(default_factory=lambda: random.Random(5))

    def serve(self, server: FakeServer) -> None:
        server.behaviours["able"] = self.answer
        server.default = "able"

    async def answer(self, request: Request) -> None:
        names = list(_asked(request.path, request.body)) or ["plain"]
        modes = [self.modes.get(name, "yes") for name in names]
        meant = {name for name, mode in zip(names, modes, strict=True) if mode in _MEANT}
        match next((mode for mode in modes if mode not in (*_MEANT, "no")), "yes"):
            case "absent":
                await request.answer(b'{"error": {"message": "no such parameter"}}', status="400 Bad Request")
            case "late":
                await asyncio.sleep(30)
            case "never":
                request.close()
            case "nonsense":
                await request.answer(b'[{"choices": 7}]')
            case _:
                body = self._body(request, meant, is_counted="uncounted" not in modes, is_cut="cut" in modes)
                await request.answer(json.dumps(body).encode())

    def _body(self, request: Request, meant: set[str], *, is_counted: bool, is_cut: bool) -> dict[str, Any]:
        num = 2 if meant & {"n", "many_prompts"} else 1
        choices = [self._choice(request, meant, index) for index in range(num)]
        if is_cut:
            choices[0]["finish_reason"] = "length"
            choices[0]["message"]["content"] = choices[0]["message"]["content"][:5]
        prompt = 3 if "token_prompts" in meant else self.prompt_tokens
        answer = request.body["max_tokens"] * (num if is_counted else 1)
        usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
        return {"model": "served", "choices": choices} | ({"usage": usage} if self.counts_usage else {})

    def _choice(self, request: Request, meant: set[str], index: int) -> dict[str, Any]:
        text, end = self._text(request, meant)
        choice: dict[str, Any] = {"index": index, "finish_reason": end}
        if "messages" not in request.body:
            return choice | {"text": text}
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if self.thinks and not meant & {"json", "json_object"}:
            message = {"role": "assistant", "content": "", "reasoning_content": text}
        if "tools" in meant:
            call = {"id": "1", "type": "function", "function": {"name": "note", "arguments": '{"ok": true}'}}
            message |= {"content": None, "tool_calls": [call]}
        if "logprobs" in meant:
            choice["logprobs"] = {"content": [{"token": "1", "logprob": -0.1}]}
        return choice | {"message": message}

    def _text(self, request: Request, meant: set[str]) -> tuple[str, str]:
        shaped = next((text for name, text in SHAPED.items() if name in meant), None)
        if shaped is not None:
            return shaped, "stop"
        if meant & {"logit_bias", "favoured"}:
            return FAVOURED * request.body["max_tokens"] + "!" * len(meant & set(PENALTIES)), "length"
        if request.text == COUNTING:
            stop = request.body["stop"][0] if "stop" in meant else None
            return (COUNTED, "length") if stop is None else (COUNTED.split(stop, maxsplit=1)[0], "stop")
        if request.text == LETTERS:
            return self._letters(request.body, meant), "length"
        return "banana", "length" if "many_prompts" in meant else "stop"

    def _letters(self, body: Mapping[str, Any], meant: set[str]) -> str:
        if body["temperature"] == 0 or meant & {"top_k", "min_p"}:
            return LETTERED
        chance = random.Random(body["seed"]) if "seed" in meant else self.chance
        return "".join(chance.choices("abcdefgh", k=20))


def _asked(path: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Return the capabilities that a request asks for."""
    kind = body.get("response_format", {}).get("type")
    yield from ({"json_schema": ["json"], "json_object": ["json_object"]}.get(kind, []))
    yield from body.get("structured_outputs", {})
    yield from (name for name in ("n", "seed", "stop", "logprobs", "tools", "echo") if name in body)
    yield from (name for name in PENALTIES if body.get(name) == 2.0)
    if "logit_bias" in body:
        yield "logit_bias" if len(body["logit_bias"]) == 1 else "favoured"
    yield from (name for name, value in (("top_k", 1), ("min_p", 1.0)) if body.get(name) == value)
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        yield "token_prompts" if isinstance(prompt[0], int) else "many_prompts"
