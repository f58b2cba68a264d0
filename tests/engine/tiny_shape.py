"""The shape of a model that is quick to make and to run, for tests of the whole engine."""

from __future__ import annotations

from lab.make_model import Shape

TINY_SHAPE = Shape(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=48,
    vocab_size=128,
    tie_word_embeddings=True,
    max_position_embeddings=128,
)
