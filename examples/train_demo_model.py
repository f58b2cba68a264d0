"""Train the demo model from scratch on generated documents: `python -m examples.train_demo_model`.

Runs on 2 CPU cores, writes checkpoints, and continues from the last one when started again with the same options.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from examples.demo_tokenizer import train_tokenizer
from examples.documents import Split, answer_text, chat_messages, make_documents

MAX_POSITIONS = 512
WITHOUT_SYSTEM_EVERY = 4  # every fourth request has no system message
MAX_GRADIENT_NORM = 1.0
FINAL_RATE_FRACTION = 0.02
REPORT_EVERY = 20
IGNORED = -100  # target of a position that is not trained on


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a run; a checkpoint with other settings is refused, except for the number of steps.

    A continued run may be shortened or lengthened: its rate then follows the schedule of the new length.
    """

    steps: int
    copy_steps: int
    batch_size: int
    warmup_steps: int
    matrix_rate: float
    other_rate: float
    seed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and next-token targets, both [sequences, tokens]; untrained targets are IGNORED."""

    tokens: Tensor
    targets: Tensor


class Optimizers:
    """Muon on the hidden matrices and AdamW on the rest, under one cosine schedule.

    Muon (Jordan 2024, https://kellerjordan.github.io/posts/muon/) learns to copy in fewer steps than AdamW alone.
    """

    def __init__(self, model: LlamaForCausalLM, settings: Settings) -> None:
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        matrix_ids = {id(p) for p in matrices}
        others = [p for p in model.parameters() if id(p) not in matrix_ids]
        self._settings = settings
        self._all: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=settings.matrix_rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=settings.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
        ]

    def step(self, step: int) -> None:
        """Apply the gradients at the schedule's rate for this step, and clear them."""
        factor = rate_factor(step, self._settings)
        for optimizer, rate in zip(self._all, (self._settings.matrix_rate, self._settings.other_rate), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dicts(self) -> list[dict[str, object]]:
        return [optimizer.state_dict() for optimizer in self._all]

    def load_state_dicts(self, states: list[dict[str, object]]) -> None:
        for optimizer, state in zip(self._all, states, strict=True):
            optimizer.load_state_dict(state)


def rate_factor(step: int, settings: Settings) -> float:
    """Return the learning rate as a fraction of its peak: linear warm-up, then cosine."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    return FINAL_RATE_FRACTION + (1 - FINAL_RATE_FRACTION) * 0.5 * (1 + math.cos(math.pi * progress))


def make_model(tokenizer: PreTrainedTokenizerFast, *, seed: int) -> LlamaForCausalLM:
    """Build the untrained model."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def copy_batch(step: int, vocabulary_size: int, settings: Settings) -> Batch:
    """Draw sequences of random tokens, each repeated once; only the repetition is trained on.

    Learning to copy from these first takes less time than from the documents.
    """
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    length = int(torch.randint(8, 40, (), generator=generator))
    once = torch.randint(0, vocabulary_size, (settings.batch_size, length), generator=generator)
    tokens = torch.cat([once, once], dim=1)
    targets = torch.full_like(tokens, IGNORED)
    targets[:, length:-1] = tokens[:, length + 1 :]
    return Batch(tokens, targets)


def document_batch(step: int, tokenizer: PreTrainedTokenizerFast, settings: Settings) -> Batch:
    """Return the step's documents as padded chats; only the answers are trained on."""
    documents = make_documents(
        settings.batch_size, split=Split.TRAINING, seed=settings.seed, start=step * settings.batch_size
    )
    chats = [
        (
            chat_messages(document)[int(index % WITHOUT_SYSTEM_EVERY == 0) :],
            tokenizer(answer_text(document) + str(tokenizer.eos_token))["input_ids"],
        )
        for index, document in enumerate(documents)
    ]
    return token_batch(chats, tokenizer)


def token_batch(chats: Iterable[tuple[list[dict[str, str]], list[int]]], tokenizer: PreTrainedTokenizerFast) -> Batch:
    """Return messages and their answers' tokens as padded chats; only the answers are trained on."""
    prompts, answers = [], []
    for messages, answer in chats:
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer(prompt)["input_ids"])
        answers.append(answer)
    return _pad(prompts, answers, pad=int(tokenizer.pad_token_id))


def _pad(prompts: list[list[int]], answers: list[list[int]], *, pad: int) -> Batch:
    width = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True))
    tokens = torch.full((len(prompts), width), pad)
    targets = torch.full((len(prompts), width), IGNORED)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        end = len(prompt) + len(answer)
        tokens[row, :end] = torch.tensor(prompt + answer)
        targets[row, len(prompt) - 1 : end - 1] = torch.tensor(answer)
    return Batch(tokens, targets)


def training_loss(model: LlamaForCausalLM, batch: Batch) -> tuple[Tensor, float]:
    """Return the mean cross-entropy and the accuracy of the trained positions."""
    hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
    trained = batch.targets != IGNORED
    logits = model.lm_head(hidden[trained])
    targets = batch.targets[trained]
    accuracy = float((logits.argmax(-1) == targets).float().mean())
    return torch.nn.functional.cross_entropy(logits.float(), targets), accuracy


def train(settings: Settings, *, checkpoint: Path, output: Path, save_every: int) -> None:
    """Train to the last step, from the checkpoint if there is one, and write the model directory.

    Raise SystemExit if the checkpoint has other settings, apart from the number of steps.
    """
    tokenizer = train_tokenizer(seed=settings.seed)
    model = make_model(tokenizer, seed=settings.seed)
    optimizers = Optimizers(model, settings)
    first = _load_checkpoint(checkpoint, model, optimizers, settings)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens, steps {first} to {settings.steps}")
    started = time.monotonic()
    for step in range(first, settings.steps):
        copying = step < settings.copy_steps
        batch = copy_batch(step, len(tokenizer), settings) if copying else document_batch(step, tokenizer, settings)
        loss, accuracy = training_loss(model, batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
        optimizers.step(step)
        if (step + 1) % REPORT_EVERY == 0:
            task = "copying" if copying else "documents"
            seconds = (time.monotonic() - started) / (step + 1 - first)
            print(f"step {step + 1} {task}: loss {loss.item():.4f}, tokens right {accuracy:.4f}, {seconds:.3f} s/step")
        if (step + 1) % save_every == 0:
            _save_checkpoint(checkpoint, model, optimizers, settings, step=step + 1)
    write_model(model, tokenizer, output)


def write_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, output: Path) -> None:
    """Write the model directory with weights in bf16, half their size."""
    output.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(output)
    tokenizer.save_pretrained(output)
    size = sum(path.stat().st_size for path in output.iterdir())
    print(f"wrote {output}: {size / 1e6:.2f} MB")


def _fixed_settings(settings: Settings) -> dict[str, float]:
    return {name: value for name, value in asdict(settings).items() if name != "steps"}


def _save_checkpoint(
    path: Path, model: LlamaForCausalLM, optimizers: Optimizers, settings: Settings, *, step: int
) -> None:
    state = {
        "settings": _fixed_settings(settings),
        "step": step,
        "model": model.state_dict(),
        "optimizers": optimizers.state_dicts(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    unfinished.replace(path)  # an interrupted save leaves the earlier checkpoint intact


def _load_checkpoint(path: Path, model: LlamaForCausalLM, optimizers: Optimizers, settings: Settings) -> int:
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if state["settings"] != _fixed_settings(settings):
        raise SystemExit(
            f"{path} was written with {state['settings']}; this run has {_fixed_settings(settings)}. "
            "Use the same options, or remove the checkpoint to start afresh."
        )
    model.load_state_dict(state["model"])
    optimizers.load_state_dicts(state["optimizers"])
    return int(state["step"])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000, help="total number of steps")
    parser.add_argument("--copy-steps", type=int, default=600, help="steps on copying random tokens, at the start")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--warmup-steps", type=int, default=50)
    parser.add_argument("--matrix-rate", type=float, default=4e-3, help="peak learning rate of the hidden matrices")
    parser.add_argument("--other-rate", type=float, default=4e-3, help="peak learning rate of embeddings and norms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=200, help="steps between checkpoints")
    parser.add_argument("--checkpoint", type=Path, default=Path("build/demo_model/checkpoint.pt"))
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "demo_model")
    return parser.parse_args()


def main() -> None:
    """Train with the options of the command line."""
    arguments = _parse_arguments()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a log shows progress as it happens
    torch.set_num_threads(arguments.threads)
    settings = Settings(**{field.name: getattr(arguments, field.name) for field in fields(Settings)})
    train(settings, checkpoint=arguments.checkpoint, output=arguments.output, save_every=arguments.save_every)


if __name__ == "__main__":
    main()
