"""A CUDA device played by the CPU: what runs on it computes real values, and what a real one would refuse fails.

Tensors "on the device" are CPU tensors of a class of their own, and every torch function is looked at before it runs:
operands on both sides raise, reading a device tensor's memory raises, and whatever makes the host wait for the device
is noted in `waits`. Triton's kernels run in its interpreter. What this cannot show: speed, memory, races.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map

from kernels import draw_tokens, rms_norm, rope, rope_and_write_kv, silu_mul, token_mask, write_kv
from kernels.gpu import attention as paged_attention_triton
from kernels.gpu import grouped_linear as grouped_linear_triton
from kernels.gpu.backend import launch

LAUNCHING = (
    *(draw_tokens, grouped_linear_triton, paged_attention_triton, rms_norm, rope, rope_and_write_kv),
    *(silu_mul, token_mask, write_kv),
)
"""The modules that launch kernels."""

DEVICE = torch.device("cuda", 0)
MEMORY_BYTES, PEAK_BYTES, USED_BYTES = 2**18, 2**15, 2**14


class DeviceTensor(Tensor):
    """A tensor on the emulated device."""


def is_on_device(value: Any) -> bool:
    return isinstance(value, DeviceTensor)


def to_host(value: Any) -> Any:
    return value.as_subclass(Tensor) if is_on_device(value) else value


def to_device(value: Any) -> Any:
    return value.as_subclass(DeviceTensor) if isinstance(value, Tensor) else value


def is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


class EmulatedCuda(TorchFunctionMode):
    """Run torch functions as the device or as the host would, by where their tensors are."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._pinned: set[int] = set()
        self._own: dict[Any, Callable[..., Any]] = {
            Tensor.device.__get__: lambda tensor: DEVICE if is_on_device(tensor) else torch.device("cpu"),
            Tensor.is_cuda.__get__: is_on_device,  # type: ignore[attr-defined]
            Tensor.is_cpu.__get__: lambda tensor: not is_on_device(tensor),  # type: ignore[attr-defined]
            Tensor.pin_memory: self._pin,
            Tensor.to: self._to,
            Tensor.cpu: lambda tensor: self._to(tensor, "cpu"),
            Tensor.copy_: self._copy,
            Tensor.__setitem__: self._set_item,
            torch.empty_like: self._empty_like,
            torch._has_compatible_shallow_copy_type: lambda left, right: is_on_device(left) == is_on_device(right),
        }
        reads: list[Callable[..., Any]] = [Tensor.tolist, Tensor.item, Tensor.nonzero]
        reads += [Tensor.__bool__, Tensor.__int__, Tensor.__float__]
        addresses: list[Callable[..., Any]] = [Tensor.data_ptr, Tensor.numpy]
        self._own |= {function: partial(self._read, function) for function in reads}
        self._own |= {function: partial(self._address, function) for function in addresses}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        options = dict(kwargs or {})
        if func in self._own:
            return self._own[func](*args, **options)
        if "device" in options or options.get("pin_memory"):
            return self._make(func, args, options)
        return self._compute(func, args, options)

    def _compute(self, function: Any, args: Any, options: dict[str, Any]) -> Any:
        tensors = [value for value in tree_iter((args, options)) if isinstance(value, Tensor)]
        if not any(map(is_on_device, tensors)):
            return function(*args, **options)
        strangers = [value for value in tensors if not is_on_device(value) and to_host(value).dim() > 0]
        assert not strangers, f"{function.__name__} got a host tensor {tuple(strangers[0].shape)} beside device tensors"
        args, options = tree_map(to_host, (args, options))
        return tree_map(to_device, function(*args, **options))

    def _make(self, function: Any, args: Any, options: dict[str, Any]) -> Any:
        """Run a function that makes a tensor where it is told to; values from the host make the host wait."""
        device, is_pinned = options.pop("device", None), options.pop("pin_memory", False)
        on_device = is_cuda(device)
        assert not (on_device and is_pinned), "only host memory can be pinned"
        result = function(*tree_map(to_host, args), **options)
        if function is torch.tensor and on_device:
            self.waits.append("torch.tensor")
        if is_pinned:
            self._pinned.add(result.untyped_storage().data_ptr())
        return to_device(result) if on_device else result

    def _empty_like(self, tensor: Tensor, **options: Any) -> Tensor:
        options.setdefault("device", DEVICE if is_on_device(tensor) else "cpu")
        made: Tensor = self._make(torch.empty_like, (tensor,), options)
        return made

    def _pin(self, tensor: Tensor) -> Tensor:
        assert not is_on_device(tensor), "only host memory can be pinned"
        copy = tensor.clone()
        self._pinned.add(copy.untyped_storage().data_ptr())
        return copy

    def _to(self, tensor: Tensor, *args: Any, **options: Any) -> Tensor:
        named = {torch.dtype: "dtype", bool: "non_blocking", str: "device", torch.device: "device"}
        options |= {named[type(value)]: value for value in args if value is not None}
        device, is_non_blocking = options.pop("device", None), options.pop("non_blocking", False)
        moved: Tensor = to_host(tensor).to(**options) if options else to_host(tensor)
        on_device = is_on_device(tensor) if device is None else is_cuda(device)
        if on_device != is_on_device(tensor):
            self._note_copy("to", host=moved if on_device else None, is_non_blocking=is_non_blocking)
            moved = moved.clone()
        return to_device(moved) if on_device else moved

    def _copy(self, target: Tensor, source: Tensor, *, non_blocking: bool = False) -> Tensor:
        if is_on_device(target) != is_on_device(source):
            host = source if is_on_device(target) else target
            self._note_copy("copy_", host=host, is_non_blocking=non_blocking)
        to_host(target).copy_(to_host(source))
        return target

    def _set_item(self, target: Tensor, index: Any, value: Any) -> None:
        """A number written through an index tensor is first copied from the host, which waits."""
        if is_on_device(target) and not isinstance(value, Tensor) and any(map(is_on_device, tree_iter(index))):
            self.waits.append("__setitem__")
        self._compute(Tensor.__setitem__, (target, index, value), {})

    def _note_copy(self, name: str, *, host: Tensor | None, is_non_blocking: bool) -> None:
        """A copy waits for nothing only if asked so, and if the host's side is pinned."""
        is_pinned = host is not None and host.untyped_storage().data_ptr() in self._pinned
        if not (is_non_blocking and is_pinned):
            self.waits.append(name)

    def _read(self, function: Any, tensor: Tensor, **options: Any) -> Any:
        if is_on_device(tensor):
            self.waits.append(function.__name__)
        result = function(to_host(tensor), **options)
        return to_device(result) if is_on_device(tensor) else result

    @staticmethod
    def _address(function: Any, tensor: Tensor) -> Any:
        assert not is_on_device(tensor), f"{function.__name__} of a device tensor: the host cannot use its memory"
        return function(tensor)


class Event:
    """An event of the emulated device, whose work is always done."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@contextmanager
def emulated_cuda() -> Iterator[EmulatedCuda]:
    """Let torch have one CUDA device, and Triton's launches run in the interpreter on its memory."""

    def launch_on_device(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **options: Any) -> None:
            assert all(map(is_on_device, (value for value in args if isinstance(value, Tensor)))), "a host tensor"
            with torch._C.DisableTorchFunction():
                launch(kernel, grid)(*map(to_host, args), **options)

        return run

    cuda: dict[str, Any] = {
        "is_available": lambda: True,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device=None: None,
        "max_memory_allocated": lambda device=None: PEAK_BYTES,
        "memory_allocated": lambda device=None: USED_BYTES,
        "mem_get_info": lambda device=None: (MEMORY_BYTES, MEMORY_BYTES),
        "get_device_properties": lambda device=None: SimpleNamespace(multi_processor_count=4, name="emulated"),
        "Event": Event,
        "current_stream": lambda device=None: SimpleNamespace(query=lambda: True),
    }
    with ExitStack() as stack:
        stack.enter_context(mock.patch.multiple(torch.cuda, **cuda))
        for module in LAUNCHING:
            stack.enter_context(mock.patch.object(module, "launch", launch_on_device))
        yield stack.enter_context(EmulatedCuda())
