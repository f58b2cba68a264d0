"""One GPU op per file, each with its Triton kernel, its host function and a plain PyTorch twin."""
