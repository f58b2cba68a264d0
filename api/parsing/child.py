"""The parsing process: reads questions from standard input and answers on standard output until end of input."""

from __future__ import annotations

import os
import pickle
import sys
from importlib import import_module

from api.fields import StrictModel
from api.parsing.messages import Answer, Question, Refusal, read_message, write_message
from api.parsing.parsed import parsed
from jobs.errors import InputError

_NICENESS = 5
"""Lowers the priority, so that a large body delays its own request and not others."""


def answer(question: Question) -> Answer:
    """Return the body as its model, or the error."""
    model: type[StrictModel] = getattr(import_module(question.module), question.name)
    try:
        return parsed(model, question.content, question.kind)
    except InputError as error:
        return Refusal(kind=type(error), message=error.message, param=error.param, code=error.code)


def main() -> None:
    os.nice(_NICENESS)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library's output must not pass for an answer
    while (message := read_message(source)) is not None:
        write_message(sink, pickle.dumps(answer(pickle.loads(message))))


if __name__ == "__main__":
    main()
