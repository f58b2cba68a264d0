"""A model's answers from the bare engine: through the stack the same prompts must give the same answers."""

from __future__ import annotations

from collections.abc import Sequence

from engine.llm import LLM
from engine.params import SamplingParams
from lab.chaos.expected import Answer


class BareAnswers:
    """The bare engine in this process. Calls from several threads are serialized."""

    def __init__(self, model_folder: str, *, max_tokens: int) -> None:
        self._llm = LLM(model_folder)
        self._params = SamplingParams(temperature=0.0, max_tokens=max_tokens)

    def of(self, prompts: Sequence[str]) -> dict[str, Answer]:
        """Return the answers to prompts, greedily decoded."""
        outputs = self._llm.generate(prompts, self._params)
        completions = [output.outputs[0] for output in outputs]
        return {
            prompt: Answer(text=each.text, num_tokens=len(each.token_ids))
            for prompt, each in zip(prompts, completions, strict=True)
        }
