"""Text of one block class: a module whose forward lists the operators on local shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoplan.emit.conversions import BlockLayout, block_layout, conversion_call, parameter_call
from autoplan.emit.text import (
    LINE_LENGTH,
    call_lines,
    comment,
    identifier,
    keyword_text,
    literal,
    operator_call,
    runtime_call,
    state_suffix,
    state_text,
    string,
)
from autoplan.errors import InputError
from autoplan.ir.graph import BlockClass, Op, Tensor, aten_name
from autoplan.ir.placement import Placement, Replicate, shard_shape
from autoplan.ir.strategy import OpStrategy
from autoplan.rules import localize

__all__ = ["BlockText", "block_class_lines", "op_lines", "tuple_lines"]

_AXIS = "self.tp"
_AGAIN = {
    "none": "  # the backward finds all that it needs kept",
    "selective": "  # the backward runs it again, but for products and collectives",
    "full": "  # the backward runs it again",
}
# Operators that return a list, also when it has one element.
_LISTS = frozenset(
    {
        "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "unsafe_chunk",
        "unsafe_split", "unsafe_split_with_sizes", "meshgrid", "broadcast_tensors",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockText:
    """What the text of a block class is made from.

    ``parameters`` are storage placements by local name, ``partial`` the parameters whose
    gradient is summed over the axis once a step, ``instances`` the names of the blocks.
    ``recompute`` is their level where others have another one, else empty.
    """

    block: BlockClass
    class_name: str
    strategies: Mapping[str, OpStrategy]
    boundary_in: tuple[Placement, ...]
    boundary_out: tuple[Placement, ...]
    parameters: Mapping[str, Placement]
    partial: frozenset[str]
    ranks: int
    instances: tuple[str, ...]
    recompute: str = ""


@dataclass(slots=True)
class _Writer:
    """Lines of a forward, and the expression that each (tensor, placement) has by now."""

    source: BlockText
    layout: BlockLayout
    names: dict[str, str]
    device: str
    lines: list[str] = field(default_factory=list)
    copies: dict[tuple[str, Placement], str] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    ends: dict[str, int] = field(default_factory=dict)  # by variable: lines up to its last use

    def note(self, tensor: Tensor, placement: Placement) -> str:
        shape = shard_shape(tensor.shape, placement, self.source.ranks)
        return f"{list(shape)} {state_text(placement)}"

    def mention(self, *expressions: str) -> None:
        """Note that the last line makes or reads these."""
        self.ends.update(dict.fromkeys(expressions, len(self.lines)))

    def end(self, kept: set[str]) -> None:
        """Write where variables end that autograd does not keep: else they live until the return.

        What the caller holds, and what the last line reads, would not end earlier.
        """
        block = self.source.block
        held = {self.names[name] for name in (*block.inputs, *block.shared)}
        ended: dict[int, list[str]] = {}
        for variable, line in self.ends.items():
            if line < len(self.lines) and variable not in kept | held and "." not in variable:
                ended.setdefault(line, []).append(variable)
        for line in sorted(ended, reverse=True):
            self.lines[line:line] = [
                f"        del {', '.join(pair)}" for pair in _pairs(ended[line])
            ]

    def converted(self, name: str, required: Placement) -> str:
        """Expression of a tensor in that state; the conversion's line is written at first use."""
        if (name, required) in self.copies:
            return self.copies[name, required]
        tensor = self.source.block.tensor(name)
        produced = self.layout.produced[name]
        if name in self.source.parameters:
            partial = name in self.source.partial
            call = parameter_call(tensor, produced, required, _AXIS, partial=partial)
        else:
            call = conversion_call(tensor, produced, required, _AXIS)
        expression = self.names[name]
        if call is not None:
            variable = f"{expression.removeprefix('self.')}_{state_suffix(required)}"
            while variable in self.used:
                variable += "_"
            self.used.add(variable)
            head = f"{variable} = rt.{call.function}"
            note = self.note(tensor, required)
            self.lines += call_lines(head, [expression, *call.args], note, 8)
            self.mention(expression, variable)
            expression = variable
        self.copies[name, required] = expression
        return expression


def _pairs(names: list[str]) -> list[list[str]]:
    return [names[index : index + 2] for index in range(0, len(names), 2)]


def block_class_lines(source: BlockText) -> list[str]:
    """Lines of the class."""
    block = source.block
    layout = block_layout(block, source.strategies, source.boundary_in, source.parameters)
    names, used = _names(block)
    arguments = [names[name] for name in (*block.inputs, *block.shared)]
    anchor = [*arguments, *(names[name] for name in (*block.parameters, *block.buffers))]
    device = f"{anchor[0]}.device" if anchor else "None"
    writer = _Writer(source=source, layout=layout, names=names, device=device, used=used)
    _write_forward(writer)
    lines = [f"class {source.class_name}(nn.Module):", f'    """{_title(source)}"""', ""]
    held = [names[name] for name in block.parameters]
    attributes = [string(name.removeprefix("self.")) for name in held]
    lines += tuple_lines("held", attributes, 4)
    lines += tuple_lines("shared", [string(identifier(name)) for name in block.shared], 4)
    if source.recompute:
        lines.append(f"    recompute = {string(source.recompute)}{_AGAIN[source.recompute]}")
    lines += ["", *_constructor(block.number_count)]
    if held:
        lines += ["        (", *(f"            {name}," for name in held), "        ) = parameters"]
    for index, name in enumerate(block.buffers):
        attribute = names[name].removeprefix("self.")
        lines.append(
            f'        self.register_buffer("{attribute}", buffers[{index}], persistent=False)'
        )
    lines.append("")
    typed = [f"{name}: Tensor" for name in arguments]
    lines += _signature("forward", typed, "tuple[Tensor, ...]")
    for name, placement in zip(block.inputs, source.boundary_in, strict=True):
        lines.append(f"        # {names[name]}: {writer.note(block.tensor(name), placement)}")
    return [*lines, *writer.lines]


def _constructor(numbers: int) -> list[str]:
    names = [f"number_{index}" for index in range(numbers)]
    typed = ["tp: rt.Axis", "parameters: Parameters", "buffers: Buffers"]
    typed += [f"{name}: float" for name in names]
    return [
        *_signature("__init__", typed, "None"),
        "        super().__init__()",
        "        self.tp = tp",
        *(f"        self.{name} = {name}" for name in names),
    ]


def _title(source: BlockText) -> str:
    count = len(source.instances)
    what = f"{count} blocks, the first" if count > 1 else "Block"
    first = comment(source.instances[0]) if source.instances else ""
    return f"{what} {first}.".replace("  ", " ")


def _names(block: BlockClass) -> tuple[dict[str, str], set[str]]:
    """Expressions of a block's tensors, distinct, and the variables they take."""
    held = {*block.parameters, *block.buffers}
    names: dict[str, str] = {}
    used = {f"number_{index}" for index in range(block.number_count)}
    for tensor in block.tensors:
        variable = identifier(tensor.name)
        while variable in used:
            variable += "_"
        used.add(variable)
        names[tensor.name] = f"self.{variable}" if tensor.name in held else variable
    return names, used


def tuple_lines(head: str, items: list[str], indent: int) -> list[str]:
    """Lines of ``head = (items)``."""
    space = " " * indent
    inner = ", ".join(items) + ("," if len(items) == 1 else "")
    line = f"{space}{head} = ({inner})"
    if len(line) <= LINE_LENGTH:
        return [line]
    return [f"{space}{head} = (", *(f"{space}    {item}," for item in items), f"{space})"]


def _signature(name: str, arguments: list[str], result: str) -> list[str]:
    line = f"    def {name}({', '.join(['self', *arguments])}) -> {result}:"
    if len(line) <= LINE_LENGTH:
        return [line]
    return [
        f"    def {name}(",
        "        self,",
        *(f"        {argument}," for argument in arguments),
        f"    ) -> {result}:",
    ]


def _write_forward(writer: _Writer) -> None:
    source = writer.source
    path = ""
    kept: set[str] = set()  # variables, and names of storages, that backward needs
    for op in source.block.ops:
        strategy = source.strategies[op.name]
        here = comment(op.module_path)
        if here and here != path:
            writer.lines.append(f"        # {here}")
            path = here
        states = writer.layout.required[op.name]
        copies = [
            writer.converted(name, state) for name, state in zip(op.inputs, states, strict=True)
        ]
        local = localize(op, source.block, strategy, source.ranks)
        if local.inputs != op.inputs:
            raise InputError(f"the local form of {op.name} reads other tensors than the operator")
        writer.lines += op_lines(
            local,
            call=strategy.call,
            expressions=copies,
            names=writer.names,
            device=writer.device,
            note=_changed(writer, op, states),
            indent=8,
        )
        made = {name: writer.names[name] for name in op.outputs}
        writer.mention(*copies, *made.values())
        made.update(zip(op.inputs, copies, strict=True))
        for name in op.saved:
            kept.update((made[name], source.block.tensor(name).base) if name in made else ())
    if len(source.block.outputs) != len(source.boundary_out):
        raise InputError(f"the plan has no placement for each output of {source.block.name}")
    results = [
        writer.converted(name, placement)
        for name, placement in zip(source.block.outputs, source.boundary_out, strict=True)
    ]
    kept |= {writer.names[t.name] for t in source.block.tensors if t.base in kept}
    writer.end(kept | {*results})
    tail = "," if len(results) == 1 else ""
    writer.lines.append(f"        return ({', '.join(results)}{tail})")


def _changed(writer: _Writer, op: Op, states: tuple[Placement, ...]) -> str:
    """Comment of an operator's line: its first output, where it differs from the first input."""
    block = writer.source.block
    output = block.tensor(op.outputs[0])
    placement = writer.layout.produced[output.name]
    note = writer.note(output, placement)
    if op.inputs:
        state = states[0]
        if isinstance(state, Replicate):
            state = Replicate()
        if writer.note(block.tensor(op.inputs[0]), state) == note:
            return ""
    return note


def op_lines(
    op: Op,
    *,
    call: str,
    expressions: list[str],
    names: Mapping[str, str],
    device: str,
    note: str,
    indent: int,
) -> list[str]:
    """Lines of one operator; ``expressions`` are its input slots in order."""
    slots = iter(expressions)
    args = [literal(arg, slots, device) for arg in op.args]
    args += [f"{keyword_text(key)}={literal(arg, slots, device)}" for key, arg in op.kwargs]
    if call:
        args.append(f"axis={_AXIS}")
    function = runtime_call(call) if call else operator_call(op.target)
    results = [names[name] for name in op.outputs]
    left = ", ".join(results)
    if len(results) == 1 and aten_name(op.target) in _LISTS:
        left = f"({left},)"
    return call_lines(f"{left} = {function}", args, note, indent)
