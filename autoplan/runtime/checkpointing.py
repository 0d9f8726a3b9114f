"""Recomputation of activations instead of keeping them.

The selective level is torch's: a dispatch mode stores what chosen operators return in the
forward, and another one hands that out when the block runs again. Such a mode sees single
ATen operators, also those inside an autograd function's forward. It can't keep what is not a
pure function of tensors: a collective writes into a tensor that exists already. So what the
runtime wants kept goes through `keep`, which is a single operator to the mode.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.flop_counter import flop_registry

__all__ = ["checkpoint", "checkpoint_selectively", "keep", "recomputing", "selecting", "unseen"]

_T = TypeVar("_T")
_STATE = threading.local()
_Contexts = tuple[AbstractContextManager[None], AbstractContextManager[None]]

aten = torch.ops.aten
_PRODUCTS = {aten.mv, aten.dot, aten.vdot, aten.addmv, aten.addbmm}
# Kernels that torch has no formula for, one for each kind of device.
_KERNELS = "aten._scaled_dot_product_"

_calls: dict[int, Callable[[], Sequence[Tensor]]] = {}
_numbers = itertools.count()


def _run_call(call: int) -> list[Tensor]:
    return list(_calls[call]())


def _operators() -> tuple[Any, Any, Any]:
    """The operators behind `keep` and `unseen`, and their library, which owns them.

    A process may hold copies of this module, of several programs: each has its own.
    """
    make: Any = torch.library.Library
    library = make("autoplan_runtime", "FRAGMENT")
    made = []
    for name in (f"keep_{id(_calls):x}", f"run_{id(_calls):x}"):
        library.define(f"{name}(int call) -> Tensor[]")
        library.impl(name, _run_call, "CompositeExplicitAutograd")
        made.append(getattr(torch.ops.autoplan_runtime, name).default)
    return made[0], made[1], library


_keep, _run, _library = _operators()


def _issue(operator: Any, call: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
    number = next(_numbers)
    _calls[number] = call
    try:
        made: list[Tensor] = operator(number)
    finally:
        del _calls[number]
    return made


def recomputing() -> bool:
    """Whether a forward runs for the second time, so that what it counts is counted already."""
    return getattr(_STATE, "again", False)


def selecting() -> bool:
    """Whether a forward of selective recompute runs, for the first or the second time."""
    return getattr(_STATE, "selecting", False)


def keep(make: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
    """What ``make`` returns; under selective recompute, it runs in the first forward only.

    For use where autograd does not record: in the forward of an autograd function. The results
    must be new tensors that nobody writes into.
    """
    if not selecting():
        return make()
    return _issue(_keep, make)


def unseen(make: Callable[[], _T]) -> _T:
    """What ``make`` returns, made beneath the dispatch mode of selective recompute.

    For tensors of a subclass, which can't be made under such a mode.
    """
    if not selecting():
        return make()
    made: list[_T] = []

    def call() -> list[Tensor]:
        made.append(make())
        return []

    _issue(_run, call)
    return made[0]


@contextmanager
def _set(**state: bool) -> Iterator[None]:
    before = {name: getattr(_STATE, name, False) for name in state}
    _STATE.__dict__.update(state)
    try:
        yield
    finally:
        _STATE.__dict__.update(before)


@contextmanager
def _inside(mode: AbstractContextManager[Any], **state: bool) -> Iterator[None]:
    with _set(**state), mode:
        yield


def _full() -> _Contexts:
    return nullcontext(), _set(again=True)


def _selective() -> _Contexts:
    create: Any = torch_checkpoint.create_selective_checkpoint_contexts
    first, second = create(_Policy())
    return _inside(first, selecting=True), _inside(second, selecting=True, again=True)


class _Policy:
    """Compute-bound operators are kept, unless they write into a tensor that they are given.

    What is kept may not be written into later. Torch checks that too, but not of tensors whose
    relation to what is kept autograd doesn't know (``unsafe_chunk``).
    """

    def __init__(self) -> None:
        self._kept: set[int] = set()

    def __call__(
        self, context: Any, operator: Any, *args: Any, **kwargs: Any
    ) -> torch_checkpoint.CheckpointPolicy:
        """Whether torch stores what the operator returned."""
        written = _written(operator, args, kwargs) if _is_mutable(operator) else ()
        if any(_address(x) in self._kept for x in written):
            raise RuntimeError(
                f"{operator} writes into a tensor that selective recompute keeps; use --recompute "
                "full or none for this model"
            )
        policy = _policy(operator, kwargs)
        if policy is torch_checkpoint.CheckpointPolicy.MUST_SAVE:
            results = getattr(context, "op_output", None)  # older torch has none
            results = results if isinstance(results, tuple | list) else [results]
            self._kept |= {_address(x) for x in results if isinstance(x, Tensor) and x.numel()}
        return policy


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    """Tensors that an operator changes."""
    for index, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        given = args[index] if index < len(args) else kwargs.get(argument.name)
        for x in given if isinstance(given, tuple | list) else [given]:
            if isinstance(x, Tensor):
                yield x


def _policy(operator: Any, kwargs: dict[str, Any]) -> torch_checkpoint.CheckpointPolicy:
    if operator is _keep or ("out" not in kwargs and _is_bound(operator)):
        return torch_checkpoint.CheckpointPolicy.MUST_SAVE
    return torch_checkpoint.CheckpointPolicy.PREFER_RECOMPUTE


@functools.cache
def _is_bound(operator: Any) -> bool:
    packet = getattr(operator, "overloadpacket", None)
    return packet in flop_registry or packet in _PRODUCTS or str(packet).startswith(_KERNELS)


@functools.cache
def _is_mutable(operator: Any) -> bool:
    schema = getattr(operator, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def checkpoint(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Result of the block; its activations are computed again in the backward pass.

    The generator states are restored for that, so dropout masks repeat.
    """
    return _checkpoint(_full, block, *args, **kwargs)


def checkpoint_selectively(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Result of the block; compute-bound operators and collectives do not run again.

    Their outputs are kept, all other activations are computed again in the backward pass.
    """
    return _checkpoint(_selective, block, *args, **kwargs)


def _checkpoint(
    contexts: Callable[[], _Contexts], block: nn.Module, *args: Any, **kwargs: Any
) -> Any:
    return torch_checkpoint.checkpoint(
        block, *args, use_reentrant=False, preserve_rng_state=True, context_fn=contexts, **kwargs
    )
