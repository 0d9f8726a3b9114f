"""The captured model: operators on tensors, as a chain of blocks with repeats folded.

A `Graph` is one training step of one microbatch on one data-parallel rank. Its
differentiable part is a chain of `BlockInstance`; equal blocks share one `BlockClass`.
Operators with no parameter upstream (masks, rotary tables, shifted labels) are *shared*:
every pipeline stage that needs their result runs them again instead of receiving it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

__all__ = [
    "Arg",
    "BlockClass",
    "BlockInstance",
    "Bound",
    "Buffer",
    "Const",
    "Graph",
    "Init",
    "Op",
    "Parameter",
    "Ref",
    "Tensor",
    "TensorKind",
    "aten_name",
    "dtype_size",
    "is_bindable",
    "numbers_read",
    "tensor_refs",
]

_DTYPE_SIZE = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8,
}  # fmt: skip


def dtype_size(dtype: str) -> int:
    """Bytes of one element; ``dtype`` is torch's name without the ``torch.`` prefix."""
    return _DTYPE_SIZE[dtype]


class TensorKind(StrEnum):
    """Where a tensor of a block comes from."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"  # of the model: a tensor of the batch
    SHARED = "shared"  # result of a shared operator
    BOUNDARY = "boundary"  # result of the previous block
    ACTIVATION = "activation"  # result of an operator of this block


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One value. ``base`` names the tensor whose storage it views (itself if none)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: TensorKind
    requires_grad: bool
    base: str

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.numel * dtype_size(self.dtype)


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a tensor, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """A torch constant: ``kind`` is ``dtype``, ``device``, ``layout`` or ``memory_format``.

    ``device`` always means the device the program runs on; its ``name`` is empty.
    """

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A number that differs between the blocks of a class: item ``index`` of their ``numbers``.

    It is a finite float and none of 0, 1 and -1, which may mean something else to an operator.
    """

    index: int


Arg = Ref | Const | Bound | None | bool | int | float | str | tuple["Arg", ...]


def is_bindable(value: object) -> bool:
    """Whether a literal may be a number of each block instead.

    >>> is_bindable(0.1), is_bindable(1.0), is_bindable(2)
    (True, False, False)
    """
    return isinstance(value, float) and math.isfinite(value) and value not in (0.0, 1.0, -1.0)


def aten_name(target: str) -> str:
    """Name of one of torch's operators, without overload; empty for another library's.

    >>> aten_name("aten.add.Tensor"), aten_name("mylib.add.default")
    ('add', '')
    """
    namespace, name, _ = target.split(".")
    return name if namespace == "aten" else ""


def tensor_refs(arg: Arg) -> Iterator[str]:
    """Names of the tensors in an argument, depth first."""
    if isinstance(arg, Ref):
        yield arg.name
    elif isinstance(arg, tuple):
        for item in arg:
            yield from tensor_refs(item)


def numbers_read(arg: Arg) -> Iterator[int]:
    """Indices of the bound numbers in an argument."""
    if isinstance(arg, Bound):
        yield arg.index
    elif isinstance(arg, tuple):
        for item in arg:
            yield from numbers_read(item)


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One ATen call, e.g. ``aten.linear.default``.

    ``flop`` and ``flop_backward`` are whole (unsharded) FLOP, one multiply-add = 2.
    ``saved`` names the tensors autograd keeps from forward to backward; ``saved_extra`` is
    bytes kept that are no tensor of the graph (dropout masks, log-sum-exp). ``mask`` is the
    kind of mask that an attention operator is given (`ir.attention`).
    """

    name: str
    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...] = ()
    outputs: tuple[str, ...]
    module_path: str = ""
    source: str = ""
    flop: int = 0
    flop_backward: int = 0
    saved: tuple[str, ...] = ()
    saved_extra: int = 0
    mask: str = ""
    _inputs: tuple[str, ...] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        names = [name for arg in self.args for name in tensor_refs(arg)]
        names += [name for _, arg in self.kwargs for name in tensor_refs(arg)]
        object.__setattr__(self, "_inputs", tuple(names))

    @property
    def inputs(self) -> tuple[str, ...]:
        """Tensor inputs in argument order, one entry for each occurrence (slot)."""
        return self._inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Init:
    """How a parameter is initialised: ``normal(a, b)``, ``uniform(a, b)``, ``constant(a)``."""

    kind: str
    a: float = 0.0
    b: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the model, by its fully qualified name (tied names listed once)."""

    fqn: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    init: Init
    aliases: tuple[str, ...] = ()

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """A buffer with its value: ``data`` is base64 of zlib of the raw little-endian bytes."""

    fqn: str
    shape: tuple[int, ...]
    dtype: str
    persistent: bool
    data: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockClass:
    """Operators of one kind of block, in order.

    ``inputs`` and ``outputs`` are the differentiable tensors that cross the block's ends.
    The outputs are named after the producing tensors; the inputs have kind ``BOUNDARY``.
    ``parameters`` and ``buffers`` are local tensor names; an instance binds them to FQNs.
    ``shared`` are results of shared operators and model inputs that the block reads.
    The last block's single output is the loss.
    """

    name: str
    ops: tuple[Op, ...]
    tensors: tuple[Tensor, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    shared: tuple[str, ...]
    _by_name: dict[str, Tensor] = field(init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {tensor.name: tensor for tensor in self.tensors})

    def tensor(self, name: str) -> Tensor:
        """Tensor of that local name."""
        return self._by_name[name]

    @property
    def number_count(self) -> int:
        """How many numbers each block binds."""
        args = (a for op in self.ops for a in (*op.args, *(value for _, value in op.kwargs)))
        return max((index for arg in args for index in numbers_read(arg)), default=-1) + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInstance:
    """One block of the chain: its class and the FQNs bound to the class's local names.

    ``numbers`` are those that the class's operators name by `Bound`.
    ``unused`` are the positions of outputs that end here: the class only passes them through,
    and no later block reads them (the memory, after the last decoder layer).
    """

    name: str
    block_class: int
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    unused: tuple[int, ...] = ()
    numbers: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """A model at one microbatch size: shared operators, then a chain of blocks.

    ``inputs`` are the tensors of the batch, whose dimension 0 is the microbatch.
    ``shared_tensors`` holds every tensor the shared operators read or write.
    """

    name: str
    dtype: str
    micro_batch_size: int
    inputs: tuple[Tensor, ...]
    shared_ops: tuple[Op, ...]
    shared_tensors: tuple[Tensor, ...]
    classes: tuple[BlockClass, ...]
    instances: tuple[BlockInstance, ...]
    parameters: tuple[Parameter, ...]
    buffers: tuple[Buffer, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.name}: {len(self.instances)} blocks of {len(self.classes)} classes, "
            f"{sum(p.numel for p in self.parameters):,} parameters"
        )

    def block_class(self, instance: BlockInstance) -> BlockClass:
        """Class of an instance."""
        return self.classes[instance.block_class]

    def handed_on(self, instance: BlockInstance) -> tuple[Tensor, ...]:
        """What the next block receives, as the tensors of this one's class."""
        block = self.block_class(instance)
        return tuple(
            block.tensor(name)
            for position, name in enumerate(block.outputs)
            if position not in instance.unused
        )

    def shared_block(self) -> BlockClass:
        """The shared operators as a block without ends or parameters."""
        return BlockClass(
            name="shared",
            ops=self.shared_ops,
            tensors=self.shared_tensors,
            inputs=(),
            outputs=(),
            parameters=(),
            buffers=(),
            shared=(),
        )

    def parameter(self, fqn: str) -> Parameter:
        """Parameter of that FQN."""
        for parameter in self.parameters:
            if parameter.fqn == fqn:
                return parameter
        raise KeyError(fqn)

    def validate(self) -> None:
        """Raise ``ValueError`` on the first broken invariant (a bug, never bad input)."""
        shared = {tensor.name for tensor in self.shared_tensors}
        known = {p.fqn for p in self.parameters}
        buffers = {b.fqn for b in self.buffers}
        counts = [block.number_count for block in self.classes]
        previous: BlockInstance | None = None
        for instance in self.instances:
            block = self.block_class(instance)
            if len(instance.parameters) != len(block.parameters):
                raise ValueError(f"{instance.name}: parameters not bound one to one")
            if len(instance.numbers) != counts[instance.block_class]:
                raise ValueError(f"{instance.name}: numbers not bound one to one")
            for number in instance.numbers:
                if not is_bindable(number):
                    raise ValueError(f"{instance.name}: {number} can't be a number of a block")
            for fqn in instance.parameters:
                if fqn not in known:
                    raise ValueError(f"{instance.name}: unknown parameter {fqn}")
            for fqn in instance.buffers:
                if fqn not in buffers:
                    raise ValueError(f"{instance.name}: unknown buffer {fqn}")
            if previous is None and block.inputs:
                raise ValueError(f"{instance.name}: the first block has inputs")
            if previous is not None:
                sent = [tensor.shape for tensor in self.handed_on(previous)]
                if sent != [block.tensor(n).shape for n in block.inputs]:
                    raise ValueError(f"{instance.name}: boundary shapes differ")
            if not {name for k, name in enumerate(block.outputs) if k in instance.unused} <= {
                *block.inputs
            }:
                raise ValueError(f"{instance.name}: it makes an output that is not used")
            previous = instance
        for block in self.classes:
            _validate_class(block, shared)
        for op in self.shared_ops:
            if any(True for a in (*op.args, *dict(op.kwargs).values()) for _ in numbers_read(a)):
                raise ValueError(f"{op.name}: a shared operator reads a number of a block")


def _validate_class(block: BlockClass, shared: set[str]) -> None:
    defined = {*block.inputs, *block.parameters, *block.buffers, *block.shared}
    for name in block.shared:
        if name not in shared:
            raise ValueError(f"{block.name}: shared tensor {name} is not defined")
    for op in block.ops:
        for arg in (*op.args, *(value for _, value in op.kwargs)):
            if any(index < 0 for index in numbers_read(arg)):
                raise ValueError(f"{block.name}: {op.name} reads a number below 0")
        for name in op.inputs:
            if name not in defined:
                raise ValueError(f"{block.name}: {op.name} reads {name} before it is defined")
        defined.update(op.outputs)
    for name in block.outputs:
        if name not in defined:
            raise ValueError(f"{block.name}: output {name} is not defined")
    for name in defined:
        block.tensor(name)
