"""Check a loaded transformers model before it serves: is its attention supported, and are the logits right with ours.

One forward pass shows every attention call (shapes, masks, options); what our kernel lacks is refused by name. A second
check compares logits of a mixed paged batch with transformers' own attention, for anything that no call shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import UnsupportedModelError
from engine.models.step_model import KvShape
from engine.models.transformers_attention import TRACED, attending

_HARMLESS = frozenset({
    "dropout", "is_causal", "sliding_window", "position_ids", "cache_position", "use_cache", "layer_idx",
    "output_attentions", "output_hidden_states", "output_router_logits", "return_dict", "deterministic",
})  # fmt: skip
"""Options without effect here: dropout is off, the mask determines causality and windows; none is read."""

_TAKEN = frozenset({"scaling", "softcap", "s_aux"})
"""Options that `TransformersDecoder` reads at every call."""

_FEATURES = {
    "position_bias": "a position bias in attention",
    "indices": "sparse attention",
    "block_indices": "sparse attention",
}

_TRACED_TOKENS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayer:
    """One attention call of a forward pass."""

    module: nn.Module
    num_kv_heads: int
    key_dim: int
    value_dim: int
    window: int | None
    """In tokens, the token itself included; None means full attention."""

    @property
    def kv_shape(self) -> KvShape:
        """Return the cached shape: the narrower of key and value is padded with zeros to the other's width."""
        return KvShape(num_heads=self.num_kv_heads, head_dim=max(self.key_dim, self.value_dim))


def trace_attention(model: Any, name: str, *, max_positions: int) -> list[AttentionLayer]:
    """Run the model once over a few tokens and return its attention calls in order.

    Raises UnsupportedModelError, which names what our attention cannot do.
    """
    if getattr(model, "_is_stateful", False):
        raise UnsupportedModelError(f"{name} carries a state besides attention (recurrent or convolutional layers).")
    if getattr(model.config.get_text_config(decoder=True), "attn_temperature_tuning", False):
        # transformers counts these positions from the length of a cache of its own, which does not exist here
        raise UnsupportedModelError(f"{name} scales queries by their position (attn_temperature_tuning).")
    trace = _Trace(name=name, max_positions=max_positions)
    model.set_attn_implementation(TRACED)
    ids = torch.tensor([probe_tokens(model.config, _TRACED_TOKENS)], device=model.device)
    positions = torch.arange(_TRACED_TOKENS, device=model.device)[None]
    with attending(trace):
        model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=1)
    if not trace.layers:
        raise UnsupportedModelError(
            f"{name}: transformers' code of {model.config.model_type} takes no attention function; "
            "the engine cannot insert its own."
        )
    return trace.layers


def probe_tokens(config: Any, count: int) -> list[int]:
    """Return `count` different ordinary tokens: none with a role in the configuration (padding, image, …)."""
    text = config.get_text_config(decoder=True)
    roles: set[int] = set()
    for key, value in (*vars(config).items(), *vars(text).items()):
        if key.endswith(("token_id", "token_index")):
            roles |= set(value if isinstance(value, list) else [value])
    step = max(1, text.vocab_size // (2 * count + 8))
    ordinary = [token for token in range(3, text.vocab_size, step) if token not in roles]
    return ordinary[:count]


@dataclass(slots=True, kw_only=True)
class _Trace:
    """Record every attention call, and return zeros for it."""

    name: str
    max_positions: int
    layers: list[AttentionLayer] = field(default_factory=list)
    _masks: list[tuple[Tensor, Callable[[], int | None]]] = field(default_factory=list)

    def mask(self, options: dict[str, Any]) -> Tensor:
        """Keep the function that finds a mask's window, under a placeholder tensor; many masks are never used."""
        length = options["q_length"]
        stand_in = torch.ones((1, 1, length, length), dtype=torch.bool, device=options["device"])
        self._masks.append((stand_in, cache(partial(self._window, options["mask_function"], stand_in.device))))
        return stand_in

    def attend(  # noqa: PLR0917  transformers' order
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: dict[str, Any]
    ) -> Tensor:
        for option, setting in options.items():
            if setting is not None and option not in _HARMLESS | _TAKEN:
                raise self._unsupported(_FEATURES.get(option, f"the attention option {option!r}"))
        if not query.shape[2] == key.shape[2] == value.shape[2] == _TRACED_TOKENS or query.shape[0] != 1:
            raise self._unsupported("attention to other tokens than the sequence's own (cross attention)")
        if query.shape[1] % key.shape[1] or key.shape[1] != value.shape[1] or query.shape[3] != key.shape[3]:
            raise self._unsupported(
                f"attention of {tuple(query.shape[1::2])} query, {tuple(key.shape[1::2])} key and "
                f"{tuple(value.shape[1::2])} value heads and dimensions"
            )
        window_of = next((find for stand_in, find in self._masks if stand_in is mask), None)
        if window_of is None:
            raise self._unsupported("an attention mask of its own making")
        self.layers.append(
            AttentionLayer(
                module=module,
                num_kv_heads=key.shape[1],
                key_dim=key.shape[3],
                value_dim=value.shape[3],
                window=window_of(),
            )
        )
        return query.new_zeros((1, query.shape[2], query.shape[1], value.shape[3]))

    def _window(self, visible: Callable[..., Tensor], device: torch.device) -> int | None:
        """Return the sliding window that equals a mask up to the longest sequence, None for full causal attention."""
        keys = torch.arange(self.max_positions, device=device)
        zero = keys[0]

        def row(position: int) -> Tensor:
            return visible(zero, zero, keys[position], keys).expand(keys.shape)

        window = int(row(self.max_positions - 1).sum())
        for position in _places(self.max_positions, window):
            expected = (keys <= position) & (keys > position - window)
            if window == 0 or not torch.equal(row(position), expected):
                raise self._unsupported("an attention mask that is neither causal nor a sliding window")
        return window if window < self.max_positions else None

    def _unsupported(self, feature: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self.name} needs {feature}; the engine's attention does not have it.")


def _places(limit: int, window: int) -> Iterator[int]:
    """Yield positions at which a mask is checked: the first ones, around the window's multiples, the last ones."""
    around = (0, window, 2 * window, limit // 3, limit // 2, limit)
    yield from sorted({base + offset for base in around for offset in (-2, -1, 0, 1, 2)} & set(range(limit)))


def eager_logits(model: Any, sequences: list[list[int]]) -> Tensor:
    """Return the logits of every token, each sequence alone under transformers' own attention, `[tokens, vocab]`."""
    model.set_attn_implementation("eager")
    return torch.cat([
        model(input_ids=torch.tensor([sequence], device=model.device), use_cache=False).logits[0]
        for sequence in sequences
    ])  # fmt: skip


def check_logits(name: str, *, got: Tensor, expected: Tensor) -> None:
    """Compare logits of a mixed paged batch with transformers' own, both `[tokens, vocab]`.

    In fp32 every token counts. In half precision the median does: a near-tie of a router may send a token elsewhere.
    Raises UnsupportedModelError if the model mixes tokens in a way that no attention call showed.
    """
    is_exact = got.dtype == torch.float32
    got, expected = got.float(), expected.float()
    errors = (got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-20)
    errors = errors.nan_to_num(torch.inf)
    error, limit = float(errors.max() if is_exact else errors.median()), 1e-3 if is_exact else 0.1
    if error > limit:
        raise UnsupportedModelError(
            f"{name}: logits over the paged cache differ from transformers' own by {error:.1%} (allowed: {limit:.1%}); "
            "the model carries something from token to token that the engine does not keep."
        )
