"""A recipe: translate texts, let the model judge each translation, and translate the bad ones again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flows.line_recipe import LineFlow, LineRecipe, LineStanding
from flows.tables import FlowNode


class Translation(LineFlow):
    __mapper_args__ = {"polymorphic_identity": "translation"}  # noqa: RUF012 - SQLAlchemy's own protocol


class TranslationNode(FlowNode):
    __mapper_args__ = {"polymorphic_identity": "translation"}  # noqa: RUF012 - SQLAlchemy's own protocol


class Translate(LineRecipe[Translation]):
    """`values`: model, language, and texts by id."""

    name = "translation"
    kind = Translation
    node = TranslationNode

    def next_nodes(self, standing: LineStanding[Translation]) -> Sequence[str]:
        return ["translate", "judge", "again"][len(standing.begun) :][:1]

    def prompts(self, standing: LineStanding[Translation], name: str) -> Iterable[tuple[str, str]]:
        texts, language = standing.flow.asked["texts"], standing.flow.asked["language"]
        if name == "judge":
            for custom_id, answer in self.answers(standing, "translate"):
                yield custom_id, f"Is this good {language} for {texts[custom_id]!r}? Answer yes or no: {answer}"
            return
        bad = {key for key, answer in self.answers(standing, "judge") if not answer.lower().startswith("yes")}
        for custom_id, text in texts.items():
            if name == "translate" or custom_id in bad:
                yield custom_id, f"Translate into {language}: {text}"

    def records(self, standing: LineStanding[Translation]) -> Iterable[Mapping[str, Any]]:
        last = dict(self.answers(standing, "translate")) | dict(self.answers(standing, "again"))
        return ({"id": custom_id, "translation": answer} for custom_id, answer in last.items())
