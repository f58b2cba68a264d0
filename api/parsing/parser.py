"""The parser of large bodies: one process, started for the first body, which parses one at a time."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from api.parsing.messages import Answer, Question, Refusal, read_message, write_message
from api.parsing.parsed import Body
from jobs.errors import ServiceError

_COMMAND = (sys.executable, "-P", "-m", "api.parsing.child")
_MOST_SECONDS = 30.0
"""Time limit for one body, including the start of the process for the first one; then it is killed."""


class BodyParser:
    """Parses bodies in order of arrival. Use it on the event loop."""

    def __init__(self, command: tuple[str, ...] = _COMMAND, *, most_seconds: float = _MOST_SECONDS) -> None:
        self._command = command
        self._most_seconds = most_seconds
        self._thread = CapacityLimiter(1)
        self._process: subprocess.Popen[bytes] | None = None

    async def parsed(self, model: type[Body], content: bytes, kind: str) -> Body:
        """Return a body as its model. Raise InputError, and ServiceError if the process ends or takes too long."""
        question = Question(module=model.__module__, name=model.__qualname__, content=content, kind=kind)
        answer = await run_sync(self._answer, question, limiter=self._thread)
        if isinstance(answer, Refusal):
            raise answer.kind(answer.message, param=answer.param, code=answer.code)
        assert isinstance(answer, model)
        return answer

    @property
    def process_id(self) -> int | None:
        """Return the process's id, if it runs."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Kill the process; another is started when needed."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _answer(self, question: Question) -> Answer:
        process = self._process = self._process or self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(self._most_seconds, process.kill)
        timer.start()
        try:
            write_message(process.stdin, pickle.dumps(question))
            content = read_message(process.stdout)
        except BrokenPipeError:
            content = None
        finally:
            timer.cancel()
        if content is None:
            self.close()
            raise ServiceError("the process that parses large bodies has ended, or took too long")
        answer: Answer = pickle.loads(content)
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        places = os.pathsep.join(place or os.getcwd() for place in sys.path)
        return subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": places},
        )
