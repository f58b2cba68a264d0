"""Small random encoders in the format of sentence-transformers, and transformers' vectors for a text."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

WORDS = ["the", "sea", "is", "cold", "and", "wide", "ships", "sail", "to", "no", "port", "today"]
MAX_SEQ_LENGTH = 24

_SPECIAL = {
    "bert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
    "roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "xlm-roberta": ["<s>", "<pad>", "</s>", "<unk>"],
    "modernbert": ["[PAD]", "[UNK]", "[CLS]", "[SEP]"],
    "qwen3": ["<|endoftext|>", "<unk>"],
}
_OF_TYPE: dict[str, dict[str, Any]] = {
    "bert": {"type_vocab_size": 2},
    "roberta": {"type_vocab_size": 1},
    "xlm-roberta": {"type_vocab_size": 1},
    "modernbert": {},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "eos_token_id": 0},
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
    with_head = AutoModelForCausalLM if model_type == "qwen3" else AutoModelForMaskedLM
    hidden_size = write_model(path, model_type, with_head if has_head else AutoModel, settings)
    _tokenizer(_SPECIAL[model_type]).save(str(path / "tokenizer.json"))
    folder = Folder(path=path, pooling=pooling, is_normalized=is_normalized)
    _write_recipe(folder, hidden_size=hidden_size)
    return folder


def make_cross_encoder(path: Path, model_type: str, **settings: Any) -> Folder:
    """Write a cross-encoder with random weights: one label, and a tokenizer of pairs."""
    write_model(path, model_type, AutoModelForSequenceClassification, {"num_labels": 1, **settings})
    _tokenizer(_SPECIAL[model_type]).save(str(path / "tokenizer.json"))
    return Folder(path=path, pooling="cls", is_normalized=False)


def random_decoder(seed: int) -> dict[str, Any]:
    """Return a configuration of a Qwen3 that differs from the others in heads, sizes, biases and windows."""
    numbers = random.Random(seed)
    num_layers, num_kv_heads = numbers.randrange(2, 6), numbers.choice([1, 2])
    kinds = ["sliding_attention", "full_attention"] if numbers.random() < 0.5 else ["full_attention"]
    return {
        "hidden_size": numbers.choice([16, 32, 48]),
        "num_attention_heads": num_kv_heads * numbers.choice([1, 2]),
        "num_key_value_heads": num_kv_heads,
        "head_dim": numbers.choice([8, 16, 24]),
        "num_hidden_layers": num_layers,
        "intermediate_size": numbers.choice([24, 40]),
        "attention_bias": numbers.random() < 0.5,
        "tie_word_embeddings": numbers.random() < 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": numbers.choice([100.0, 1_000_000.0])},
        "use_sliding_window": len(kinds) == 2,
        "sliding_window": 5,
        "layer_types": [numbers.choice(kinds) for _ in range(num_layers)],
    }


def write_model(path: Path, model_type: str, auto_class: Any, settings: dict[str, Any]) -> int:
    """Write random weights, and return how wide the rows are."""
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
            **_OF_TYPE[model_type],
            "pad_token_id": next((index for index, token in enumerate(special) if "pad" in token.lower()), 0),
            **settings,
        },
    )
    torch.manual_seed(5)
    model = auto_class.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    model.save_pretrained(path)
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
    second = 1 if special[0] == "[PAD]" else 0
    unknown = next(token for token in special if "unk" in token.lower())
    words = {word: index for index, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=unknown))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(special)
    if len(special) == 2:
        last = special[0]
        single, pair = f"$A {last}", f"$A $B {last}"
    else:
        first, last = (special[2], special[3]) if second else (special[0], special[2])
        single, pair = f"{first} $A {last}", f"{first} $A {last} $B:{second} {last}:{second}"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(token, words[token]) for token in special if token in single]
    )
    return tokenizer
