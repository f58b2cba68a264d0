"""An engine that answers with the text that the prompt states last between marks, or echoes a prompt without one.

It thinks where a stated answer has the marks of thoughts of the model's template, such as `<think>Hm.</think>Yes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from engine.config import EngineConfig
from engine.scheduling.request import NewRequest
from lab.no_compute.engine import EchoEngine

BEGIN, END = "<<<", ">>>"


def stating(answer: str) -> str:
    """Return a text that makes the engine give this answer to a prompt that contains it."""
    return f"{BEGIN}{answer}{END}"


def stated(text: str) -> str | None:
    """Return the last answer that a text states, or None."""
    before, mark, _ = text.rpartition(END)
    before, begin, answer = before.rpartition(BEGIN)
    own = len(before) - len(before.rstrip("<"))  # an answer may begin with such letters, as marks of thoughts do
    return "<" * own + answer if mark and begin else None


class StatedEngine(EchoEngine):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self._tokenizer = Tokenizer.from_file(str(Path(config.model, "tokenizer.json")))

    def answer_to(self, new: NewRequest) -> Sequence[int]:
        answer = stated(self._tokenizer.decode(list(new.prompt_token_ids), skip_special_tokens=True))
        if answer is None:
            return super().answer_to(new)
        tokens: list[int] = self._tokenizer.encode(answer, add_special_tokens=False).ids
        return tokens
