"""Small random encoders as sentence-transformers writes them, and what transformers makes of a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

WORDS = ["the", "sea", "is", "cold", "and", "wide", "ships", "sail", "to", "no", "port", "today"]
MAX_SEQ_LENGTH = 24

_SPECIAL = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "modernbert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder with an encoder."""

    path: Path
    pooling: str
    is_normalized: bool

    def write(self, name: str, content: Any) -> None:
        file = self.path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(content))

    def change(self, name: str, **settings: Any) -> None:
        self.write(name, json.loads((self.path / name).read_text()) | settings)

    def by_transformers(self, text: str) -> npt.NDArray[np.float32]:
        """Return the vector [hidden] of a text alone, with transformers' modelling code and eager attention."""
        tokenizer = Tokenizer.from_file(str(self.path / "tokenizer.json"))
        tokenizer.enable_truncation(MAX_SEQ_LENGTH)
        model = AutoModel.from_pretrained(self.path, attn_implementation="eager", dtype=torch.float32)
        with torch.inference_mode():
            rows = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0]
        vector = {"cls": rows[0], "mean": rows.mean(0), "lasttoken": rows[-1]}[self.pooling]
        found: npt.NDArray[np.float32] = (vector / vector.norm() if self.is_normalized else vector).numpy()
        return found


def make_folder(
    path: Path,
    model_type: str = "bert",
    *,
    pooling: str = "mean",
    is_normalized: bool = True,
    has_head: bool = False,
    **settings: Any,
) -> Folder:
    """Write an encoder with random weights, biases and norms too."""
    hidden_size = _write(path, model_type, AutoModelForMaskedLM if has_head else AutoModel, settings)
    folder = Folder(path=path, pooling=pooling, is_normalized=is_normalized)
    _write_recipe(folder, hidden_size=hidden_size)
    return folder


def make_cross_encoder(path: Path, model_type: str) -> Folder:
    """Write a cross-encoder with random weights: one label, and a tokenizer of pairs."""
    _write(path, model_type, AutoModelForSequenceClassification, {"num_labels": 1})
    return Folder(path=path, pooling="cls", is_normalized=False)


def _write(path: Path, model_type: str, auto_class: Any, settings: dict[str, Any]) -> int:
    """Write weights and tokenizer, and return how wide the rows are."""
    special = _SPECIAL[model_type]
    config = AutoConfig.for_model(
        model_type,
        **{
            "vocab_size": len(special) + len(WORDS),
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "max_position_embeddings": 40,
            **({} if model_type == "modernbert" else {"type_vocab_size": 2 if model_type == "bert" else 1}),
            "pad_token_id": next(index for index, token in enumerate(special) if "pad" in token.lower()),
            **settings,
        },
    )
    torch.manual_seed(5)
    model = auto_class.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(path)
    _tokenizer(special).save(str(path / "tokenizer.json"))
    size: int = config.hidden_size
    return size


def _write_recipe(folder: Folder, *, hidden_size: int) -> None:
    kinds = ["Transformer", "Pooling", "Normalize"][: 3 if folder.is_normalized else 2]
    places = ["", "1_Pooling", "2_Normalize"]
    folder.write(
        "modules.json",
        [
            {"idx": index, "name": str(index), "path": places[index], "type": f"sentence_transformers.models.{kind}"}
            for index, kind in enumerate(kinds)
        ],
    )
    flags = {"cls": "cls_token", "mean": "mean_tokens", "lasttoken": "lasttoken"}
    folder.write(
        "1_Pooling/config.json",
        {"word_embedding_dimension": hidden_size}
        | {f"pooling_mode_{flag}": name == folder.pooling for name, flag in flags.items()},
    )
    folder.write("sentence_bert_config.json", {"max_seq_length": MAX_SEQ_LENGTH, "do_lower_case": False})


def _tokenizer(special: list[str]) -> Any:
    """Return a tokenizer of whole words that puts the special tokens around a text."""
    first, last = (special[2], special[3]) if special[0] == "[PAD]" else (special[0], special[2])
    second = 1 if special[0] == "[PAD]" else 0
    unknown = next(token for token in special if "unk" in token.lower())
    words = {word: index for index, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=unknown))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(special)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:{second} {last}:{second}",
        special_tokens=[(first, words[first]), (last, words[last])],
    )
    return tokenizer
