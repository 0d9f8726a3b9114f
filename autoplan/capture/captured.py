"""Capture of a model: `capture` gives a `Captured`, which gives the `Graph` of any microbatch.

The model is traced at two microbatch sizes. Each integer that differs between the two
graphs (a dimension, a view's size, a FLOP count) is an affine function of the size, so a
third size needs no third trace. Where that is not so, the size asked for is traced itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from autoplan.capture.affine import NotAffineError, at_size
from autoplan.capture.blocks import cut_into_segments
from autoplan.capture.build import BuiltModule, encode
from autoplan.capture.depth import (
    Depth,
    DepthError,
    Stack,
    find_stacks,
    replicate,
    shortened,
)
from autoplan.capture.export import export_trace
from autoplan.capture.fold import fold
from autoplan.capture.masks import recognise_masks
from autoplan.capture.numbers import settled
from autoplan.capture.saved import KNOWN_SAVED
from autoplan.capture.source import ModelSource, disable_dropout
from autoplan.capture.trace import Trace, simplify
from autoplan.capture.witness import Witness
from autoplan.errors import CaptureError, UsageError
from autoplan.ir.experts import EXPERTS
from autoplan.ir.graph import BlockClass, Buffer, Graph, Parameter, TensorKind, aten_name
from autoplan.ir.plan import ModelRecord
from autoplan.ir.record import graph_to_record

__all__ = ["Captured", "capture"]

Progress = Callable[[str], None]

# Two sizes above 1, since dimensions of size 1 broadcast.
_SIZES = (2, 3)
_THIRD = 5
# All repeats of a run are equal, or else all but the first and the last.
_DEPTHS = (Depth(2, ends_differ=False), Depth(3, ends_differ=True))
# What notes of a trace begin with, before the name, and what is said of all that do.
_NOTED = {
    "update of buffer ": "in-place updates of buffers left out",
    "sparse gradient of ": "sparse gradients made dense",
}
_WHOLE = Depth(0, ends_differ=False)


@dataclass(slots=True, kw_only=True)
class Captured:
    """A captured model. ``at`` gives its graph, ``record`` how to name and build it again."""

    source: ModelSource
    seq_len: int
    dtype: str
    _built: BuiltModule = field(repr=False)
    _stacks: tuple[Stack, ...] = field(repr=False)
    _depth: Depth = field(repr=False)
    _witness: Witness | None = field(repr=False)
    _graphs: dict[int, Graph] = field(repr=False)
    _each_traced: bool = field(default=False, repr=False)
    _confirmed: set[int] = field(default_factory=lambda: {*_SIZES}, repr=False)

    def at(self, micro_batch_size: int) -> Graph:
        """Graph of one microbatch of that many samples."""
        if micro_batch_size < 1:
            raise UsageError(f"a microbatch of {micro_batch_size} samples", hint="use at least 1")
        graph = self._graphs.get(micro_batch_size)
        if graph is None:
            graph = self._foretold(micro_batch_size) or self._traced(micro_batch_size)
            self._graphs[micro_batch_size] = graph
        return graph

    def _foretold(self, size: int) -> Graph | None:
        """Graph by what the two sizes traced have in common; None where that doesn't serve."""
        if self._each_traced:
            return None
        small, large = (self._graphs[traced] for traced in _SIZES)
        try:
            return at_size(small, large, size)
        except NotAffineError:
            return None

    def confirm(self, micro_batch_size: int = _THIRD) -> bool:
        """Whether a trace at that size gives the graph that `at` gave.

        Two sizes show only what is affine in the size. If another size shows that they don't
        tell all, each size is traced from now on, and what was made of `at` is to be made anew.
        A trace at size 1 has no broadcasts, so there only the FLOP count, and size 5 stands for it.
        """
        if self._each_traced or micro_batch_size in self._confirmed:
            return True
        self._confirmed.add(micro_batch_size)
        graph = self._traced(micro_batch_size)
        same = graph == self.at(micro_batch_size)
        if micro_batch_size == 1 and not same:
            same = _flop(graph) == _flop(self.at(1)) and self.confirm()
        if not same:
            self._each_traced = True
            kept = {size: self._graphs[size] for size in _SIZES}
            self._graphs = kept | {micro_batch_size: graph}
        return same

    def _traced(self, size: int) -> Graph:
        return _graph_at(
            self.source, self._built, self._stacks, size, self.seq_len, self.dtype, self._depth,
            self._witness,
        )  # fmt: skip

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters, tied ones counted once."""
        return sum(parameter.numel for parameter in self._graphs[_SIZES[0]].parameters)

    def record(self) -> ModelRecord:
        """Record for the plan file; the digest is that of the graph."""
        graph = graph_to_record(self._graphs[_SIZES[0]])
        captured = graph.model_dump_json(exclude={"classes": {"__all__": {"recompute"}}})
        digest = hashlib.sha256(captured.encode()).hexdigest()
        return ModelRecord(
            spec=self.source.spec,
            form=self.source.form,
            overrides=dict(self.source.overrides),
            config=dict(self.source.config),
            digest=digest,
            file_digest=self.source.file_digest,
            num_parameters=self.num_parameters,
        )

    def __str__(self) -> str:
        return str(self._graphs[_SIZES[0]])


def capture(
    source: ModelSource,
    *,
    seq_len: int,
    dtype: str,
    progress: Progress | None = None,
    dropout: bool = True,
    reduce_depth: bool = True,
) -> Captured:
    """Captured model at ``seq_len`` tokens a sample, computing in ``dtype``.

    ``dropout=False`` captures the model as `disable_dropout` leaves it, for comparisons.
    With ``reduce_depth`` deep stacks of equal layers are traced from a few of them; the
    graph is the same.
    """
    say = progress or (lambda text: None)
    say(f"building {source.name}")
    built = source.build_for_trace(dtype=dtype)
    if not dropout:
        disable_dropout(built.module)
    stacks = find_stacks(built.module, keep=_DEPTHS[0].repeats) if reduce_depth else ()
    depth = _WHOLE
    graphs: dict[int, Graph] = {}
    witness: Witness | None = None
    if stacks:
        stacks, depth, witness, graphs = _shortened_graphs(
            source, built, stacks, seq_len, dtype, say
        )
    if not graphs:
        graphs = _two_graphs(source, built, (), seq_len, dtype, depth, None, say)
    return Captured(
        source=source, seq_len=seq_len, dtype=dtype, _built=built, _stacks=stacks, _depth=depth,
        _witness=witness, _graphs=graphs,
    )  # fmt: skip


def _shortened_graphs(
    source: ModelSource,
    built: BuiltModule,
    stacks: tuple[Stack, ...],
    seq_len: int,
    dtype: str,
    say: Progress,
) -> tuple[tuple[Stack, ...], Depth, Witness | None, dict[int, Graph]]:
    """Graphs from short stacks, without those that turn out not to stand for the whole.

    With the stacks, their depth and what is known of the whole model.

    No graphs if the whole must be traced: it may well be captured, and if not, its own
    error is the one to show.
    """
    attempt = 0
    try:
        batch = source.batch(_SIZES[0], seq_len, seed=0, device="meta")
        with source.tracing():
            witness = Witness(built.module, batch, stacks)
    except DepthError:
        return (), _WHOLE, None, {}
    while stacks:
        depth = _DEPTHS[attempt]
        try:
            with source.tracing():
                witness.check(stacks, depth)
            graphs = _two_graphs(source, built, stacks, seq_len, dtype, depth, witness, say)
        except CaptureError:
            break
        except DepthError as error:
            if attempt + 1 < len(_DEPTHS):
                attempt += 1
            elif error.stack in stacks:
                stacks = tuple(stack for stack in stacks if stack != error.stack)
            else:
                break
        else:
            return stacks, depth, witness, graphs
    return (), _WHOLE, None, {}


def _two_graphs(
    source: ModelSource,
    built: BuiltModule,
    stacks: tuple[Stack, ...],
    seq_len: int,
    dtype: str,
    depth: Depth,
    witness: Witness | None,
    say: Progress,
) -> dict[int, Graph]:
    graphs = {}
    for size in _SIZES:
        layers = sum(stack.length for stack in stacks)
        kept = sum(len(stack.kept(depth.repeats)) for stack in stacks)
        some = f", {kept} of {layers} layers" if stacks else ""
        say(f"tracing {source.name} at microbatch size {size}{some}")
        graphs[size] = _graph_at(source, built, stacks, size, seq_len, dtype, depth, witness)
    return graphs


def _graph_at(
    source: ModelSource,
    built: BuiltModule,
    stacks: tuple[Stack, ...],
    size: int,
    seq_len: int,
    dtype: str,
    depth: Depth,
    witness: Witness | None,
) -> Graph:
    batch = source.batch(size, seq_len, seed=0, device="meta")
    _check_batch(batch, size, source.name)
    module = built.module
    with shortened(module, stacks, keep=depth.repeats), source.tracing():
        trace = simplify(export_trace(module, batch, name=source.name))
        trace = simplify(recognise_masks(trace, built.buffers))
        segments = cut_into_segments(trace, module)
    chain = fold(trace, segments)
    classes, instances = settled(
        chain.classes, replicate(chain.instances, stacks, depth, witness.log if witness else ())
    )
    bound = {fqn for instance in instances for fqn in instance.parameters}
    known = dict(module.named_parameters())
    unused = [fqn for fqn in known if fqn not in bound]
    foreseen = not unused or (witness is not None and witness.unused == {*unused})
    if stacks and (not foreseen or bound - known.keys()):
        raise DepthError("the shortened model does not use the parameters of the whole")
    notes = [*built.notes, *_notes(trace, classes, unused)]
    graph = Graph(
        name=source.name,
        dtype=dtype,
        micro_batch_size=size,
        inputs=tuple(t for t in chain.shared_tensors if t.kind is TensorKind.INPUT),
        shared_ops=tuple(chain.shared_ops),
        shared_tensors=tuple(chain.shared_tensors),
        classes=tuple(classes),
        instances=tuple(instances),
        parameters=_parameters(built),
        buffers=_buffers(built, trace, {f for i in instances for f in i.buffers}, bool(stacks)),
        notes=tuple(dict.fromkeys(notes)),
    )
    try:
        graph.validate()
    except ValueError as error:
        if not stacks:
            raise
        raise DepthError(f"the shortened model has other blocks: {error}") from error
    return graph


def _flop(graph: Graph) -> int:
    return sum(
        op.flop + op.flop_backward for i in graph.instances for op in graph.block_class(i).ops
    )


def _check_batch(batch: dict[str, Tensor], size: int, name: str) -> None:
    for key, tensor in batch.items():
        if tensor.dim() == 0 or tensor.shape[0] != size:
            raise CaptureError(
                f"{name}: input {key} has shape {tuple(tensor.shape)} in a batch of {size}",
                hint="dimension 0 of each input must be the batch",
            )


def _notes(trace: Trace, classes: list[BlockClass], unused: list[str]) -> list[str]:
    notes = []
    for start, text in _NOTED.items():
        names = [note.removeprefix(start) for note in trace.notes if note.startswith(start)]
        if names:
            notes.append(_sample(text, names))
    if unused:
        notes.append(_sample("parameters that the loss does not use", unused))
    unknown = dict.fromkeys(
        op.target
        for block in classes
        for op in block.ops
        if op.target != EXPERTS
        and aten_name(op.target) not in KNOWN_SAVED
        and any(block.tensor(name).requires_grad for name in op.outputs)
    )
    if unknown:
        notes.append(
            "saved activations of "
            + ", ".join(unknown)
            + " are taken as all inputs and outputs (operators without an entry)"
        )
    masks = dict.fromkeys(op.mask for block in classes for op in block.ops if op.mask)
    if masks:
        notes.append(
            f"attention with a mask tensor ({', '.join(masks)}) can't run torch's flash kernel: "
            "the kernel for masks is priced at the same rate, computing hidden scores too"
        )
    return notes


def _sample(text: str, names: list[str]) -> str:
    return f"{text}: {names[0]}" + (" and others like it" if len(names) > 1 else "")


def _parameters(built: BuiltModule) -> tuple[Parameter, ...]:
    names: dict[int, list[str]] = {}
    tensors: dict[int, nn.Parameter] = {}
    for fqn, parameter in built.module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(fqn)
        tensors[id(parameter)] = parameter
    return tuple(
        Parameter(
            fqn=fqns[0],
            shape=tuple(tensors[key].shape),
            dtype=str(tensors[key].dtype).removeprefix("torch."),
            trainable=tensors[key].requires_grad,
            init=built.inits[fqns[0]],
            aliases=tuple(fqns[1:]),
        )
        for key, fqns in names.items()
    )


def _buffers(
    built: BuiltModule, trace: Trace, bound: set[str], is_short: bool
) -> tuple[Buffer, ...]:
    """Buffers that the graph reads or a checkpoint holds, then lifted constants."""
    read = {t.fqn for t in trace.tensors.values() if t.kind is TensorKind.BUFFER} | bound
    known = [b for fqn, b in built.buffers.items() if b.persistent or fqn in read]
    lifted = [
        encode(fqn, value, persistent=False)
        for fqn, value in trace.constants.items()
        if fqn in read and fqn not in built.buffers
    ]
    return (*known, *lifted)
