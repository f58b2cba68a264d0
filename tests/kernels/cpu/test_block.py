"""Tests of parameter blocks: the meaning of declarations, and that every op gives its kernel the declared addresses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.activations import Activation, activate
from kernels.best_token import best_tokens
from kernels.cpu.gemm import host as gemm
from kernels.cpu.gemm import panels
from kernels.cpu.grouped import host as grouped
from kernels.cpu.grouped import widened
from kernels.cpu.grouped.panels import pack as pack_grouped
from kernels.cpu.runtime.block import Block
from kernels.cpu.runtime.launch import record
from kernels.draw_from_logits import draw_from_logits
from kernels.grouped_weight import Layout, filled
from kernels.layer_norm import add_layer_norm, layer_norm
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rope import rope
from kernels.rope_and_write_kv import rope_and_write_kv
from kernels.silu_mul import silu_mul
from kernels.token_mask import apply_token_mask
from kernels.write_kv import write_kv


def test_a_declaration_names_the_words_in_their_order() -> None:
    block = Block("query* rows eps:f64")
    memory = bytearray(8 + block.size_bytes)
    block.write(memory, 8, 7, (1 << 40, 5, 0.5))
    assert block.at._asdict() == {"query": 3, "rows": 4, "eps": 5}
    assert block.addresses == (0,)
    assert struct.unpack("=q3q2qd", memory) == (0, 0, 0, 7, 1 << 40, 5, 0.5)
    assert block.named((1 << 40, 5, 0.5)).rows == 5


@pytest.mark.parametrize("words", [(1, 2), (1, 2, 0.5, 3), (1, 2.0, 0.5), (1.0, 2, 0.5)])
def test_words_other_than_the_declared_ones_are_refused(words: tuple[float, ...]) -> None:
    block = Block("query* rows eps:f64")
    with pytest.raises(struct.error):
        block.write(bytearray(block.size_bytes), 0, 1, words)


@pytest.mark.parametrize("declaration", ["rows*2", "eps:f32", "*rows", "Rows"])
def test_a_declaration_of_another_form_is_refused(declaration: str) -> None:
    with pytest.raises(AssertionError, match="has a word that is none of"):
        Block(declaration)


def addresses_given(op: Callable[[], Any]) -> dict[str, float]:
    """Return the addresses that an op's only kernel call would get, by their declared names."""
    with record() as recording:
        op()
    (call,) = recording.calls
    block = call.kernel.block
    block.write(bytearray(block.size_bytes), 0, call.num_tasks, call.words)
    return {block.at._fields[index]: call.words[index] for index in block.addresses}


def addresses_of(**tensors: Tensor) -> dict[str, float]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def test_row_ops_give_the_addresses_that_they_declare() -> None:
    x, residual, weight, outs = torch.randn(2, 8), torch.randn(2, 8), torch.randn(8), []
    given = addresses_given(lambda: outs.append(rms_norm(x, weight, eps=1e-5)))
    assert given == addresses_of(x=x, weight=weight, out=outs[0])
    given = addresses_given(lambda: outs.extend(add_rms_norm(x, residual, weight, eps=1e-5)))
    assert given == addresses_of(x=x, residual=residual, weight=weight, normed=outs[1], total=outs[2])
    given = addresses_given(lambda: outs.append(silu_mul(x)))
    assert given == addresses_of(gate_up=x, out=outs[3])


def test_ops_of_encoders_give_the_addresses_that_they_declare() -> None:
    x, residual, weight, bias, outs = torch.randn(2, 8), torch.randn(2, 8), torch.randn(8), torch.randn(8), []
    given = addresses_given(lambda: outs.append(layer_norm(x, weight, bias, eps=1e-5)))
    alone = dict.fromkeys(("residual", "total"), 0)
    assert given == addresses_of(x=x, weight=weight, bias=bias, normed=outs[0]) | alone
    given = addresses_given(lambda: outs.extend(add_layer_norm(x, residual, weight, bias, eps=1e-5)))
    fused = addresses_of(x=x, residual=residual, weight=weight, bias=bias, normed=outs[1], total=outs[2])
    assert given == fused
    given = addresses_given(lambda: outs.append(activate(x, Activation.GELU, is_gated=True)))
    assert given == addresses_of(x=x, out=outs[3])


def test_cache_ops_give_the_addresses_that_they_declare(layer_case: Any) -> None:
    case = layer_case([0, 4])
    key = addresses_of(key=case.key)
    rotation = addresses_of(query=case.query, cos_sin=case.cos_sin, positions=case.step.positions)
    caches = addresses_of(key_cache=case.cache.keys, value_cache=case.cache.values)
    write = addresses_of(value=case.value, slots=case.step.slots) | caches
    given = addresses_given(
        lambda: rope_and_write_kv(case.query, case.key, case.value, case.cos_sin, case.cache, case.step)
    )
    assert given == key | rotation | write
    given = addresses_given(lambda: rope(case.query, case.key, case.step.positions, case.cos_sin))
    assert given == key | rotation | dict.fromkeys(write, 0)
    given = addresses_given(lambda: write_kv(case.key, case.value, case.cache, case.step.slots))
    assert given == key | write | dict.fromkeys(rotation, 0)


@pytest.mark.parametrize("sinks", [None, torch.zeros(3)], ids=["no sinks", "sinks"])
def test_attention_gives_the_addresses_that_it_declares(attention_case: Any, sinks: Tensor | None) -> None:
    case, outs = attention_case([(1, 5), (3, 3)]), []
    query, cache, step, rule = case.query, case.cache, case.step, replace(case.rule, sinks=sinks)
    given = addresses_given(lambda: outs.append(paged_attention(query, cache, step, rule)))
    assert given.pop("sinks") == (0 if sinks is None else sinks.data_ptr())
    tables = {name: getattr(step, name) for name in ("block_tables", "query_start", "context_lens")}
    assert given == addresses_of(query=query, key_cache=cache.keys, value_cache=cache.values, out=outs[0], **tables)


def test_products_and_masks_give_the_addresses_that_they_declare() -> None:
    x, packed, bias, outs = torch.randn(2, 8).bfloat16(), panels.pack(torch.randn(5, 8).bfloat16()), torch.zeros(48), []
    given = addresses_given(lambda: outs.append(gemm.linear(x, packed, bias, 5, unit=gemm.Unit.DOTS)))
    assert given == addresses_of(x=x, weight=packed, bias=bias, out=outs[0])
    ids = torch.tensor([3, 0])
    given = addresses_given(lambda: outs.append(panels.gather_rows(packed, ids, (5, 8))))
    assert given == addresses_of(weight=packed, ids=ids, out=outs[1])
    given = addresses_given(lambda: outs.append(best_tokens(x)))
    assert given == addresses_of(logits=x, tokens=outs[2])
    rows, temperature, draws = torch.tensor([1, 0]), torch.ones(2), torch.zeros(2)
    given = addresses_given(lambda: outs.append(draw_from_logits(x, rows, temperature, draws)))
    assert given == addresses_of(logits=x, rows=rows, temperature=temperature, draws=draws, tokens=outs[3])
    logits, mask = torch.randn(2, 40), torch.zeros(2, 2, dtype=torch.int32)
    given = addresses_given(lambda: apply_token_mask(logits, mask, ids))
    assert given == addresses_of(logits=logits, mask=mask, rows=ids)


def test_products_of_packed_weights_give_the_addresses_that_they_declare() -> None:
    x, bias, outs = torch.randn(2, 32).bfloat16(), torch.zeros(48), []
    stored = pack_grouped(filled(Layout(bits=4, scale_bytes=2, has_minima=True), (5, 32)))
    given = addresses_given(
        lambda: outs.append(widened.linear(x, stored, bias, unit=gemm.Unit.DOTS, dtype=torch.bfloat16))
    )
    assert given.pop("scratch") != 0
    assert given == addresses_of(x=x, numbers=stored.memory, bias=bias, out=outs[0])
    with record() as recording:
        outs.append(grouped.linear(x, stored, bias, dtype=torch.bfloat16))
    rounded, product = recording.outputs
    rounding, multiplying = (call.kernel.block.named(call.words) for call in recording.calls)
    assert (rounding.x, rounding.out, multiplying.x) == (x.data_ptr(), rounded.data_ptr(), rounded.data_ptr())
    assert (multiplying.numbers, multiplying.bias) == (stored.memory.data_ptr(), bias.data_ptr())
    assert multiplying.out == product.data_ptr() == outs[1].data_ptr()
