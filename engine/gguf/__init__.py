"""Models in one file of ggml's format GGUF: container, weights, configuration and tokenizer.

The container is read by container.py alone; what its keys and tensors mean is said by the others.
"""
