"""Quantized weights in safetensors: what quantization_config says of them, and how they are read."""
