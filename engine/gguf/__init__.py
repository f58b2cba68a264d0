"""Models in one file of ggml's format GGUF: container, weights, configuration and tokenizer.

container.py reads the container; the other modules interpret its keys and tensors.
"""
