"""The process that parses: it is asked on standard input, and answers on standard output until that ends."""

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
"""Whoever waits for a large body waits longer, rather than everybody else."""


def answer(question: Question) -> Answer:
    """Return the body as its model, or what is wrong with it."""
    model: type[StrictModel] = getattr(import_module(question.module), question.name)
    try:
        return parsed(model, question.content, question.kind)
    except InputError as error:
        return Refusal(kind=type(error), message=error.message, param=error.param, code=error.code)


def main() -> None:
    os.nice(_NICENESS)
    source, sink = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no answer
    while (asked := read_message(source)) is not None:
        write_message(sink, pickle.dumps(answer(pickle.loads(asked))))


if __name__ == "__main__":
    main()
