"""Tests of chaos with a server in place of engines: its options, and the answers of a server that computes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from lab.chaos.checked_batches import count_tokens
from lab.chaos.command import _COUNTS, _name, parse
from lab.chaos.stack import MODEL_FOLDER
from lab.no_compute.server import EchoServer
from tokenmill.processes import PACKAGES, command_of


def num_faults(*words: str) -> int:
    arguments = parse(words)
    return sum(getattr(arguments, _name(option)) for option, _ in _COUNTS.values())


def test_a_server_has_sixty_faults_of_its_own() -> None:
    assert (num_faults("--engine", "openai"), parse(["--engine", "openai"]).store_minutes) == (60, 0.0)
    assert num_faults("--engine", "openai", "--server-kills", "0", "--role-kills", "3") == 60 - 18 + 3
    assert parse([]).server_kills == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--server-kills", "1"),
        ("--engine", "openai", "--engine-crashes", "1"),
        ("--engine", "openai", "--demo-model"),
        ("--server-command", "serve {socket}", "--model-folder", "model"),
        ("--engine", "openai", "--server-command", "serve {socket}"),
        ("--engine", "openai", "--flows", "5"),
    ],
)
def test_faults_of_what_is_not_there_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit):
        parse(words)


def test_a_prompt_is_answered_with_itself_as_text_and_as_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_FOLDER / "tokenizer.json"))
    text = "line 7 of s1b2"
    num = count_tokens(text)

    async def ask() -> list[dict[str, Any]]:
        socket = str(tmp_path / "s")
        is_over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await EchoServer(tokenizer, seconds=0.0).serve(reader, writer)
            await writer.wait_closed()
            is_over.set()

        server = await asyncio.start_unix_server(serve, socket)
        reader, writer = await asyncio.open_unix_connection(socket)
        answers = []
        for prompt, limit in ((text, 64), (tokenizer.encode(text).ids, 64), (text, 2)):
            content = json.dumps({"prompt": prompt, "max_tokens": limit}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\ncontent-length: {len(content)}\r\n\r\n"
            writer.write(head.encode() + content)
            length = (await reader.readuntil(b"\r\n\r\n")).decode().strip().rpartition(": ")[2]
            answers.append(json.loads(await reader.readexactly(int(length))))
        writer.close()
        await is_over.wait()
        server.close()
        return answers

    whole, same, cut = asyncio.run(ask())
    assert whole == same
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == (text, "stop")
    assert whole["usage"] == {"prompt_tokens": num, "completion_tokens": num + 1}
    assert (cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"]) == ("length", 2)


def test_a_real_server_takes_the_place_of_its_process(tmp_path: Path) -> None:
    script = "import os, sys; print(sys.argv[1], os.getpid(), os.environ.get('PYTHONPATH'))"
    module = command_of("lab.chaos.real_server", "a.socket", sys.executable, "-c", script, "--uds={socket}")
    process = subprocess.Popen(module, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": PACKAGES})
    written, _ = process.communicate(timeout=60)
    assert written.split() == ["--uds=a.socket", str(process.pid), "None"]
