"""A random model with a real tokenizer, for tests of grammars."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from engine.llm import LLM
from engine.loop.core import Engine
from engine.outputs import RequestOutput, TokenDelta
from engine.params import SamplingParams
from engine.stats import EngineStats
from engine.structured import StructuredOutput
from tests.engine.tiny_models import save_tiny

VOCAB_SIZE = 400  # more than the tokenizer has: real models are padded too

TEXT = 'The invoice of {"vendor": "Miller", "total": 12.50, "tags": ["paid", "late"], "due": null} is number 7.'

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["paid", "late", "new"]}, "maxItems": 3},
        "email": {"anyOf": [{"type": "string", "pattern": "^[a-z]{1,5}@[a-z]{1,5}\\.com$"}, {"type": "null"}]},
    },
    "required": ["name", "age", "tags", "email"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "leaf": {
            "type": "object",
            "properties": {"id": {"type": "boolean"}},
            "required": ["id"],
            "additionalProperties": False,
        },
    },
    "type": "object",
    "properties": {
        "left": {"$ref": "#/$defs/leaf"},
        "right": {"$ref": "#/$defs/leaf"},
        "total": {"type": "string", "format": "date"},
    },
    "required": ["left", "right", "total"],
    "additionalProperties": False,
}
LIST = {
    "type": "array",
    "items": {"oneOf": [{"const": "vendor"}, {"type": "integer", "maximum": 999, "minimum": -9}]},
    "minItems": 2,
    "maxItems": 4,
}


def structured(seed: int = 0, *, max_tokens: int = 200, **fields: Any) -> SamplingParams:
    return SamplingParams(seed=seed, max_tokens=max_tokens, structured=StructuredOutput(**fields))


MIXED = [structured(seed, json=PERSON) for seed in range(6)] + [structured(seed, json=TREE) for seed in range(5)]
MIXED.append(
    SamplingParams(
        seed=9, max_tokens=200, repetition_penalty=1.3, presence_penalty=0.5, structured=StructuredOutput(json=TREE)
    )
)


def save_grammar_model(path: Path) -> None:
    """Save a random model beside a byte-level BPE tokenizer trained on one line."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 9,
        special_tokens=["<pad>", "<s>", "</s>", "<|tool|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.save_pretrained(path)
    # Narrow weights: every token is likely, so that the grammars are put to the test.
    save_tiny(path, {"model_type": "llama", "vocab_size": VOCAB_SIZE, "initializer_range": 0.05})


def run(path: Path, params: list[SamplingParams], **settings: Any) -> tuple[list[list[int]], EngineStats]:
    llm = LLM(path, dtype="float32", warm_up=False, **{"num_kv_blocks": 600, "max_num_seqs": 64, **settings})
    return tokens(llm.generate([TEXT[: 5 + index] for index in range(len(params))], params)), llm.stats()


def run_to_end(engine: Engine) -> list[TokenDelta]:
    deltas = []
    while engine.has_work:
        deltas += engine.step()
    return deltas


def texts(outputs: list[RequestOutput]) -> list[str]:
    """Return the texts of outputs that ended by themselves."""
    assert [output.outputs[0].finish_reason for output in outputs] == ["stop"] * len(outputs), [
        output.outputs[0].error for output in outputs
    ]
    return [output.outputs[0].text for output in outputs]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]
