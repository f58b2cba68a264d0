"""Read a GGUF file with transformers, gguf and accelerate; requests come from stdin, answers go to stdout.

Run by tests/real_model.py in its own process.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def digest(tensor: Tensor) -> str:
    """Return a digest of a tensor's values in fp32; 0.0 and -0.0 are equal."""
    return hashlib.sha256((tensor.float() + 0.0).contiguous().numpy().tobytes()).hexdigest()


def main(path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    asked = json.load(sys.stdin)
    model: Any = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = [template(tokenizer, chat) for chat in asked["chats"]]
    answers = {
        "weights": {name: digest(tensor) for name, tensor in model.state_dict().items()},
        "token_ids": [tokenizer.encode(text, add_special_tokens=False) for text in asked["texts"]],
        "prompts": prompts,
        "outputs": [generate(model, prompt, asked["num_tokens"]) for prompt in prompts],
    }
    sys.stdout.write(json.dumps(answers))


def template(tokenizer: Any, chat: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False)
    return ids


def generate(model: Any, prompt: list[int], num_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), min_new_tokens=num_tokens, max_new_tokens=num_tokens,
            do_sample=False, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


if __name__ == "__main__":
    main(Path(sys.argv[1]))
