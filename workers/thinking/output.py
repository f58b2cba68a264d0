"""The output of one choice, parted into thoughts and answer by the tokens of their marks."""

from __future__ import annotations

from collections.abc import Sequence

from engine.child_output import ChildOutput
from engine.outputs import FinishReason, TokenLogprobs
from engine.thoughts import PartedTokens, Thoughts, parted
from jobs.lines.responses import Reasoning


class ThinkingOutput:
    """An output that has ended; without `thoughts` all of it is the answer."""

    def __init__(self, whole: ChildOutput, thoughts: Thoughts | None) -> None:
        self.whole = whole
        self._parts = None if thoughts is None else parted(whole.shown_token_ids, thoughts)

    @property
    def num_thoughts(self) -> int:
        """Return the number of its tokens of thoughts."""
        return 0 if self._parts is None else len(self._parts.thoughts)

    @property
    def reasoning(self) -> Reasoning | None:
        """Return its thoughts; None if it has none."""
        parts = self._parts
        if parts is None or not (parts.thoughts or parts.has_ended or parts.is_cut):
            return None
        text = self.whole.part_text(parts.first_thought, parts.thoughts).strip()
        return Reasoning(text=text, finish_reason=self._reasoning_finish(parts), has_answer=not parts.is_cut)

    def _reasoning_finish(self, parts: PartedTokens) -> str:
        if parts.is_cut and self.whole.finish_reason is FinishReason.LENGTH:
            return "length"
        return "budget" if parts.has_spent_budget and parts.has_ended else "stop"

    def answer_text(self, *, has_special_tokens: bool = False) -> str:
        """Return the text of its answer, without the white space between thoughts and answer."""
        whole, parts = self.whole, self._parts
        if parts is None or parts.is_plain:
            return whole.text_with_special_tokens() if has_special_tokens else whole.text()
        text = whole.part_text(
            parts.first_place, parts.answer, behind=parts.behind_thoughts, has_special_tokens=has_special_tokens
        )
        return text.lstrip() if parts.has_ended else text

    @property
    def answer_logprobs(self) -> tuple[Sequence[int], Sequence[TokenLogprobs]]:
        """Return the tokens of its answer with their log-probabilities."""
        whole, parts = self.whole, self._parts
        if parts is None or parts.is_plain:
            return whole.shown_token_ids, whole.logprobs
        places = parts.answer_places
        return [whole.token_ids[place] for place in places], [whole.logprobs[place] for place in places]
