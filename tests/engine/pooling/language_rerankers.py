"""Small random language models that rerank, as sentence-transformers writes them, and transformers' own scores.

The chat template is built like that of Qwen3-Reranker.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from tests.engine.pooling.builders import WORDS, Folder, write_model

MAX_TOKENS = 160
TEMPLATE = """\
{%- set query = messages | selectattr("role", "eq", "query") | map(attribute="content") | first -%}
{%- set document = messages | selectattr("role", "eq", "document") | map(attribute="content") | first -%}
{%- set asked = messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("fits?") -%}
<|im_start|>system
Answer "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: {{ asked }}
<Query>: {{ query }}
<Document>: {{ document }}<|im_end|>
<|im_start|>assistant

"""
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageReranker:
    """A folder with a Qwen3 reranker."""

    folder: Folder
    has_labels: bool
    """Whether it has its own score instead of its output matrix."""
    has_template: bool

    @property
    def path(self) -> Path:
        return self.folder.path

    def token_ids(self, query: str, document: str) -> list[int]:
        """Return the prompt of a pair as transformers' tokenizer writes it."""
        tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(self.path)
        if not self.has_template:
            return list(tokenizer(query, document)["input_ids"])
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return list(tokenizer.apply_chat_template(messages, return_dict=False))

    def by_transformers(self, query: str, document: str) -> float:
        """Return the score of a pair alone, with transformers' modelling code and eager attention."""
        auto: Any = AutoModelForSequenceClassification if self.has_labels else AutoModelForCausalLM
        model = auto.from_pretrained(self.path, attn_implementation="eager", dtype=torch.float32).eval()
        with torch.inference_mode():
            logits = model(torch.tensor([self.token_ids(query, document)])).logits[0]
        if self.has_labels:
            return float(logits[0])
        yes, no = token_ids_of_answers(self.path)
        return float(logits[-1, yes] - logits[-1, no])


def make_language_reranker(
    path: Path, *, has_labels: bool = False, has_template: bool = True, **settings: Any
) -> LanguageReranker:
    """Write one with random weights."""
    tokenizer = _tokenizer()
    auto = AutoModelForSequenceClassification if has_labels else AutoModelForCausalLM
    labels = {"num_labels": 1} if has_labels else {}
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": MAX_TOKENS}
    write_model(path, "qwen3", auto, {**sizes, **labels, **settings})
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=TEMPLATE if has_template else None)
    whole.save_pretrained(path)
    folder = Folder(path=path, pooling="lasttoken", is_normalized=False)
    if not has_labels:
        yes, no = token_ids_of_answers(path)
        kinds = {
            "": "base.modules.transformer.Transformer",
            "1_LogitScore": "cross_encoder.modules.LogitScore",
        }
        modules = [{"path": place, "type": f"sentence_transformers.{kind}"} for place, kind in kinds.items()]
        folder.write("modules.json", modules)
        folder.write("1_LogitScore/config.json", {"true_token_id": yes, "false_token_id": no})
    return LanguageReranker(folder=folder, has_labels=has_labels, has_template=has_template)


def token_ids_of_answers(path: Path) -> tuple[int, int]:
    """Return the tokens of yes and no."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    yes, no = tokenizer.token_to_id("yes"), tokenizer.token_to_id("no")
    assert yes is not None
    assert no is not None
    return yes, no


def _tokenizer() -> Any:
    """Return a byte-level tokenizer whose tokens take the space before a word, as Qwen's do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [TEMPLATE, *(f"{word}\n {word}" for word in [*WORDS, "yes", "no"])]
    tokenizer.train_from_iterator(texts * 3, trainer)
    return tokenizer
