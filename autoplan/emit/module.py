"""Text of ``model.py``: parameters, block classes, shared operators, stages."""

from __future__ import annotations

from collections.abc import Iterator

from autoplan.emit.block import BlockText, block_class_lines, op_lines, tuple_lines
from autoplan.emit.names import class_names
from autoplan.emit.text import (
    LINE_LENGTH,
    comment,
    dtype_text,
    fqn_text,
    identifier,
    import_line,
    number_text,
    string,
)
from autoplan.errors import InputError
from autoplan.ir.graph import BlockInstance, Graph, TensorKind
from autoplan.ir.graph_record import ParameterRecord
from autoplan.ir.placement import Partial, Placement, Shard, parse_placement
from autoplan.ir.plan import Plan
from autoplan.ir.record import graph_from_record, strategies_from_record
from autoplan.ir.variants import class_families
from autoplan.rules import library_of

__all__ = ["model_text", "shared_needs"]


def model_text(plan: Plan) -> str:
    """Source of the program's model."""
    graph = _read_graph(plan)
    used = sorted({i.block_class for i in graph.instances})
    stages = _stage_instances(plan, graph)
    needs = [shared_needs(graph, instances) for instances in stages]
    kinds = list(dict.fromkeys(needs))
    names = class_names(class_families(graph), [block.recompute for block in plan.graph.classes])
    lines = _header(plan, _libraries(graph, used, needs))
    lines += _parameters(plan)
    for index in used:
        lines += ["", "", *block_class_lines(_block_text(plan, graph, index, names[index]))]
    for number, kind in enumerate(kinds):
        on = [index for index, need in enumerate(needs) if need == kind]
        lines += ["", "", *_shared_function(graph, number, kind, on)]
    lines += ["", "", *_stage_table(graph, stages, names)]
    lines += tuple_lines("SHARED", [f"shared_{kinds.index(need)}" for need in needs], 0)
    renamed = [tensor.name for tensor in graph.inputs if identifier(tensor.name) != tensor.name]
    lines += ["", "", *_stage_class(plan, stages, renamed)]
    return "\n".join(lines) + "\n"


def _read_graph(plan: Plan) -> Graph:
    try:
        graph = graph_from_record(plan.graph)
        graph.validate()
    except (KeyError, ValueError, IndexError) as error:
        raise InputError(f"the plan's graph is broken: {error}") from error
    return graph


def _stage_instances(plan: Plan, graph: Graph) -> list[tuple[BlockInstance, ...]]:
    cuts = [(stage.first, stage.last) for stage in plan.pipeline.stages]
    ends = [0, *(last for _, last in cuts)]
    whole = ends[-1] == len(graph.instances) and len(cuts) == plan.virtual_stages * plan.mesh.pp
    if not whole or any(
        first != end or first >= last for (first, last), end in zip(cuts, ends, strict=False)
    ):
        raise InputError(
            f"the plan's stages {cuts} do not cut {len(graph.instances)} blocks "
            f"into stages of {plan.mesh.pp} ranks"
        )
    return [graph.instances[first:last] for first, last in cuts]


def _block_text(plan: Plan, graph: Graph, index: int, class_name: str) -> BlockText:
    record = plan.graph.classes[index]
    block = graph.classes[index]
    stored = {p.fqn: (parse_placement(p.placement), p.partial_grad) for p in plan.graph.parameters}
    instances = [i for i in graph.instances if i.block_class == index]
    bound: dict[str, tuple[Placement, bool]] = {}
    for instance in instances:
        for name, fqn in zip(block.parameters, instance.parameters, strict=True):
            if bound.setdefault(name, stored[fqn]) != stored[fqn]:
                raise InputError(
                    f"{fqn} is stored otherwise than the same parameter of {instances[0].name}"
                )
    return BlockText(
        block=block,
        class_name=class_name,
        strategies=strategies_from_record(plan.graph)[index],
        boundary_in=tuple(map(parse_placement, record.boundary_in)),
        boundary_out=tuple(map(parse_placement, record.boundary_out)),
        parameters={name: placement for name, (placement, _) in bound.items()},
        partial=frozenset(name for name, (_, partial) in bound.items() if partial),
        ranks=plan.mesh.tp,
        instances=tuple(i.name for i in instances),
        recompute=record.recompute if plan.recompute == "mixed" else "",
    )


def _libraries(graph: Graph, used: list[int], needs: list[tuple[str, ...]]) -> list[str]:
    """Modules that register operators of the program that are not torch's own."""
    shared = graph.shared_ops if any(needs) else ()
    found: dict[str, None] = {}
    for op in (*shared, *(op for index in used for op in graph.classes[index].ops)):
        namespace = op.target.partition(".")[0]
        if namespace in {"aten", "autoplan"}:
            continue
        library = library_of(op.target)
        if not library:
            name = op.target.rpartition(".")[0].replace(".", "::")
            raise InputError(
                f"a program can't call {name}: no library is known that registers it",
                hint=f"in the model's file: autoplan.register_rule({name!r}, library="
                '"the.module.that.registers.it"), then autoplan solve ... -o DIR',
            )
        found.setdefault(library)
    return sorted(found)


def _header(plan: Plan, libraries: list[str]) -> list[str]:
    axes = ", ".join(f"{axis} {degree}" for axis, degree in plan.mesh.model_dump().items())
    return [
        f'"""{comment(plan.graph.name)} on {plan.mesh.tp} tp ranks, written by autoplan.',
        "",
        "Each block's forward lists the operators on this rank's shards. A comment gives the local",
        "shape and the placement on tp where an operator changes either: R whole, S(d) a slice of",
        "dim d, S(d, k) a slice of each of k blocks of dim d, S(d, pad) a slice of a dim that does",
        "not divide, rounded up, P an addend, R* whole with a partial gradient.",
        "",
        f"Mesh: {axes}.",
        *([f"Recompute: {plan.recompute_text}."] if plan.recompute == "mixed" else []),
        '"""',
        "",
        "from __future__ import annotations",
        "",
        "import json",
        "from collections.abc import Sequence",
        "from pathlib import Path",
        "",
        *map(import_line, libraries),
        "import runtime as rt",
        "import torch",
        "from torch import Tensor, nn",
        "",
        "aten = torch.ops.aten",
        "",
        "Parameters = Sequence[nn.Parameter]",
        "Buffers = Sequence[Tensor]",
        "",
        'PLAN = json.loads((Path(__file__).parent / "plan.json").read_text(encoding="utf-8"))',
        'BUFFERS = {record["fqn"]: record for record in PLAN["graph"]["buffers"]}',
        "",
        f"DTYPE = {dtype_text(plan.graph.dtype)}",
    ]


def _parameters(plan: Plan) -> list[str]:
    lines = ["", "PARAMETERS: dict[str, rt.ParameterSpec] = {"]
    for record in plan.graph.parameters:
        inner = _specification(record)
        head = f"    {fqn_text(record.fqn)}: rt.ParameterSpec("
        line = f"{head}{inner}),"
        short = len(line) <= LINE_LENGTH
        lines += [line] if short else [head, f"        {inner}", "    ),"]
    lines.append("}")
    other = {p.fqn: p.dtype for p in plan.graph.parameters if p.dtype != plan.graph.dtype}
    lines += ["", "# Parameters of another dtype.", "OTHER_DTYPES: dict[str, torch.dtype] = {"]
    lines += [f"    {fqn_text(fqn)}: {dtype_text(dtype)}," for fqn, dtype in other.items()]
    return [*lines, "}"] if other else [*lines[:-2], "OTHER_DTYPES: dict[str, torch.dtype] = {}"]


def _specification(record: ParameterRecord) -> str:
    placement = parse_placement(record.placement)
    parts = [f"shape={tuple(record.shape)!r}"]
    match placement:
        case Shard(dim, _, True):
            parts.append(f"dim={dim}, padded=True")
        case Shard(dim, blocks):
            parts.append(f"dim={dim}" if blocks == 1 else f"dim={dim}, blocks={blocks}")
        case Partial():
            raise InputError(f"parameter {record.fqn} can't be stored as {placement}")
    if record.partial_grad:
        parts.append("partial_grad=True")
    if not record.trainable:
        parts.append("trainable=False")
    init = record.init
    values = f"{string(init.kind)}, {init.a!r}" + (f", {init.b!r}" if init.b else "")
    parts.append(f"init=rt.Init({values})")
    return ", ".join(parts)


def shared_needs(graph: Graph, instances: tuple[BlockInstance, ...]) -> tuple[str, ...]:
    """Shared tensors that these blocks read, in order of definition."""
    wanted = {name for i in instances for name in graph.block_class(i).shared}
    return tuple(t.name for t in graph.shared_tensors if t.name in wanted)


def _shared_function(
    graph: Graph, number: int, needs: tuple[str, ...], stages: list[int]
) -> list[str]:
    """Function that computes shared tensors, without the operators nobody needs."""
    inputs = [tensor.name for tensor in graph.inputs]
    names = {t.name: identifier(t.name) for t in (*graph.shared_tensors, *graph.inputs)}
    held = {t.name for t in graph.shared_tensors if t.kind is TensorKind.BUFFER}
    for name in held:
        names[name] = f"buffers[{fqn_text(buffer_fqn(graph, name))}]"
    wanted = set(needs)
    kept = []
    for op in reversed(graph.shared_ops):
        if wanted.intersection(op.outputs):
            wanted.update(op.inputs)
            kept.append(op)
    arguments = [f"{names[name]}: Tensor" for name in inputs]
    on = ", ".join(map(str, stages))
    lines = [
        f"def shared_{number}(",
        *(f"    {argument}," for argument in arguments),
        "    *,",
        "    buffers: dict[str, Tensor],",
        "    device: torch.device,",
        ") -> dict[str, Tensor]:",
        f'    """Values without a gradient that stages {on} read."""'
        if len(stages) > 1
        else f'    """Values without a gradient that stage {on} reads."""',
    ]
    for op in reversed(kept):
        expressions = [names[name] for name in op.inputs]
        lines += op_lines(
            op,
            call="",
            expressions=expressions,
            names=names,
            device="device",
            note="",
            indent=4,
        )
    lines.append("    return {")
    lines += [f"        {string(identifier(name))}: {names[name]}," for name in needs]
    return [*lines, "    }"] if needs else [*lines[:-1], "    return {}"]


def buffer_fqn(graph: Graph, name: str) -> str:
    """FQN of the buffer that the shared operators call ``name``."""
    for buffer in graph.buffers:
        if buffer.fqn == name or buffer.fqn.replace(".", "_") == name:
            return buffer.fqn
    raise InputError(f"the plan has no buffer for the shared tensor {name}")


def _shared_buffers(graph: Graph) -> Iterator[str]:
    for tensor in graph.shared_tensors:
        if tensor.kind is TensorKind.BUFFER:
            yield buffer_fqn(graph, tensor.name)


def _stage_table(
    graph: Graph, stages: list[tuple[BlockInstance, ...]], names: tuple[str, ...]
) -> list[str]:
    lines = [
        "# For each stage its blocks: class, parameters, buffers.",
        "BlockPlan = tuple[type[nn.Module], tuple[str, ...], tuple[str, ...]]",
        "STAGES: tuple[tuple[BlockPlan, ...], ...] = (",
    ]
    for instances in stages:
        lines.append("    (")
        for instance in instances:
            lines += ["        (", f"            {names[instance.block_class]},"]
            for fqns in (instance.parameters, instance.buffers):
                if not fqns:
                    lines.append("            (),")
                    continue
                lines.append("            (")
                lines += [f"                {fqn_text(fqn)}," for fqn in fqns]
                lines.append("            ),")
            lines.append("        ),")
        lines.append("    ),")
    lines.append(")")
    unused = _unused(stages)
    if unused:
        lines += ["# Outputs that no later block reads, by stage and block.", "UNUSED = {"]
        lines += [f"    {place}: {positions}," for place, positions in unused.items()]
        lines.append("}")
    numbers = _numbers(stages)
    if numbers:
        lines += ["# Numbers that blocks of a class differ in, by stage and block.", "NUMBERS = {"]
        for place, values in numbers.items():
            line = f"    {place}: ({', '.join(values)}{',' if len(values) == 1 else ''}),"
            broken = [f"    {place}: (", *(f"        {value}," for value in values), "    ),"]
            lines += [line] if len(line) <= LINE_LENGTH else broken
        lines.append("}")
    shared = [fqn_text(fqn) for fqn in _shared_buffers(graph)]
    return [*lines, *tuple_lines("SHARED_BUFFERS", shared, 0)]


def _unused(
    stages: list[tuple[BlockInstance, ...]],
) -> dict[tuple[int, int], tuple[int, ...]]:
    return {
        (stage, number): tuple(map(int, instance.unused))
        for stage, instances in enumerate(stages)
        for number, instance in enumerate(instances)
        if instance.unused
    }


def _numbers(stages: list[tuple[BlockInstance, ...]]) -> dict[tuple[int, int], list[str]]:
    return {
        (stage, number): [number_text(float(value)) for value in instance.numbers]
        for stage, instances in enumerate(stages)
        for number, instance in enumerate(instances)
        if instance.numbers
    }


def _stage_class(
    plan: Plan, stages: list[tuple[BlockInstance, ...]], renamed: list[str]
) -> list[str]:
    run = _run_lines(plan)
    text = _STAGE.replace("RUN_BLOCK", run)
    for name in renamed:
        # The batch has the name of forward's parameter, the program one that it can use.
        taken = f"batch[{string(identifier(name))}] = batch.pop({string(name)})"
        line = "        device = next("
        text = text.replace(line, f"        {taken}\n{line}", 1)
    if _numbers(stages):
        text = text.replace(_BUILD, _BUILD_NUMBERED).replace(_MAKE, _MAKE_NUMBERED)
    if _unused(stages):
        text = text.replace(_WALK, _WALK_NUMBERED).replace(f"{run}\n", f"{run}\n{_LEAVE_OUT}")
    return text.split("\n")


_WALK = "for block in self.blocks:\n            extra"
_WALK_NUMBERED = "for number, block in enumerate(self.blocks):\n            extra"

_RUN_BLOCK = {
    "none": "tensors = block(*tensors, *extra)",
    "selective": "tensors = rt.checkpoint_selectively(block, *tensors, *extra)",
    "full": "tensors = rt.checkpoint(block, *tensors, *extra)",
}


def _run_lines(plan: Plan) -> str:
    """Statements that run a block by its recompute level."""
    if plan.recompute != "mixed":
        return _RUN_BLOCK[plan.recompute]
    levels = [level for level in _RUN_BLOCK if level in plan.graph.levels]
    lines: list[str] = []
    for level in levels:
        word = "elif" if lines else "if"
        head = "else:" if level == levels[-1] else f'{word} block.recompute == "{level}":'
        lines += [head, f"    {_RUN_BLOCK[level]}"]
    return f"\n{' ' * 12}".join(lines)


_BUILD = "for block_class, names, buffers in STAGES[index]:"
_BUILD_NUMBERED = "for number, (block_class, names, buffers) in enumerate(STAGES[index]):"
_MAKE = """\
            self.blocks.append(block_class(tp, [parameters[fqn] for fqn in names], values))
"""
_MAKE_NUMBERED = """\
            held = [parameters[fqn] for fqn in names]
            numbers = NUMBERS.get((index, number), ())
            self.blocks.append(block_class(tp, held, values, *numbers))
"""

_LEAVE_OUT = """\
            unused = UNUSED.get((self.index, number), ())
            tensors = tuple(t for place, t in enumerate(tensors) if place not in unused)
"""


_STAGE = '''class Stage(nn.Module):
    """The blocks of one pipeline stage; a parameter used by several of them exists once."""

    def __init__(self, index: int, tp: rt.Axis, device: torch.device) -> None:
        super().__init__()
        self.index = index
        self.blocks = nn.ModuleList()
        parameters: dict[str, nn.Parameter] = {}
        for block_class, names, buffers in STAGES[index]:
            for fqn in names:
                if fqn not in parameters:
                    parameters[fqn] = _parameter(fqn, tp, device)
            values = [_buffer(fqn, device) for fqn in buffers]
            self.blocks.append(block_class(tp, [parameters[fqn] for fqn in names], values))
        for number, fqn in enumerate(SHARED_BUFFERS):
            self.register_buffer(f"shared_{number}", _buffer(fqn, device), persistent=False)

    def fqns(self) -> dict[str, nn.Parameter]:
        """Parameters of the stage by their names in the model."""
        found: dict[str, nn.Parameter] = {}
        for block, (_, names, _) in zip(self.blocks, STAGES[self.index], strict=True):
            for fqn, attribute in zip(names, block.held, strict=True):
                found.setdefault(fqn, getattr(block, attribute))
        return found

    def forward(self, *boundary: Tensor, **batch: Tensor) -> Tensor | tuple[Tensor, ...]:
        device = next(iter(batch.values())).device
        buffers = {f: getattr(self, f"shared_{n}") for n, f in enumerate(SHARED_BUFFERS)}
        shared = SHARED[self.index](**batch, buffers=buffers, device=device)
        tensors = boundary
        for block in self.blocks:
            extra = [shared[name] for name in block.shared]
            RUN_BLOCK
        return tensors[0] if len(tensors) == 1 else tensors


def _parameter(fqn: str, tp: rt.Axis, device: torch.device) -> nn.Parameter:
    spec = PARAMETERS[fqn]
    return rt.empty_parameter(spec, tp, OTHER_DTYPES.get(fqn, DTYPE), device)


def _buffer(fqn: str, device: torch.device) -> Tensor:
    return rt.load_buffer(BUFFERS[fqn]).to(device)


def build_stage(index: int, tp: rt.Axis, device: torch.device) -> Stage:
    """Stage ``index`` with this rank's shards, values not set."""
    return Stage(index, tp, device)'''
