"""A random model beside a real tokenizer: what grammars are put to the test with."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tests.engine.tiny_models import save_tiny

VOCAB_SIZE = 400  # more than the tokenizer has: real models are padded too


TEXT = 'The invoice of {"vendor": "Miller", "total": 12.50, "tags": ["paid", "late"], "due": null} is number 7.'


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
