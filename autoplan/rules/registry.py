"""The registry of sharding rules, and what all rules share.

A rule is a generator of facts: placements of an operator's inputs under which the ATen call
on local shards gives its outputs in stated placements. Everything else is here, once:
divisibility, duplicates, order, tensors that can't be partial, and the strategy that
replicates everything.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autoplan.errors import AutoplanError, UnsupportedOpError, UsageError
from autoplan.ir.graph import Arg, BlockClass, Op, Tensor, TensorKind, tensor_refs
from autoplan.ir.placement import Partial, Placement, Replicate, Shard, can_pad
from autoplan.ir.strategy import InnerCollective, OpStrategy
from autoplan.rules.blocks import block_counts
from autoplan.rules.padding import padded_sizes

__all__ = [
    "Localizer",
    "OpView",
    "P",
    "R",
    "Rule",
    "S",
    "has_rule",
    "library_folders",
    "library_of",
    "localize",
    "register_rule",
    "registered_targets",
    "rule",
    "stated_strategies",
    "strategies",
]

R = Replicate()
P = Partial()
S = Shard

_FLOATING = ("float", "bfloat", "complex")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpView:
    """What a rule sees of an operator: its tensors, its literals and the number of ranks.

    ``block_counts`` holds (dim size, pieces) for each way in which operators of the same
    block cut a dimension of that size into equal pieces; see `blocks`. ``padded_sizes`` are
    those of dimensions that may be padded; see `padding`.
    """

    op: Op
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ranks: int
    block_counts: tuple[tuple[int, int], ...]
    padded_sizes: tuple[int, ...] = ()

    @property
    def output(self) -> Tensor:
        """First output."""
        return self.outputs[0]

    def arg(self, index: int, name: str = "", default: Arg = None) -> Arg:
        """Argument by position, else by keyword, else ``default``."""
        if index < len(self.op.args):
            return self.op.args[index]
        return dict(self.op.kwargs).get(name, default)

    def integer(self, index: int, name: str, default: int) -> int:
        """Argument that must be an integer."""
        value = self.arg(index, name, default)
        return value if isinstance(value, int) else default

    def integers(self, index: int, name: str) -> tuple[int, ...]:
        """Argument that is an integer or a list of them; empty when absent."""
        value = self.arg(index, name)
        items = value if isinstance(value, tuple) else (value,)
        return tuple(item for item in items if isinstance(item, int))

    def slots(self, index: int, name: str = "") -> tuple[int, ...]:
        """Input slots of the tensors in one argument."""
        before = 0
        for position, arg in enumerate(self.op.args):
            count = len(tuple(tensor_refs(arg)))
            if position == index:
                return tuple(range(before, before + count))
            before += count
        for key, arg in self.op.kwargs:
            count = len(tuple(tensor_refs(arg)))
            if key == name:
                return tuple(range(before, before + count))
            before += count
        return ()

    def slot(self, index: int, name: str = "") -> int | None:
        """Input slot of an argument that is a tensor; ``None`` when it is not."""
        found = self.slots(index, name)
        return found[0] if found else None

    def shape(self, slot: int = 0) -> tuple[int, ...]:
        """Whole shape of an input slot."""
        return self.inputs[slot].shape

    def blocks(self, size: int) -> tuple[int, ...]:
        """Block counts worth trying for a dimension of ``size``: 1 first."""
        return (1, *(pieces for whole, pieces in self.block_counts if whole == size))

    def shards(self, dim: int, size: int) -> tuple[Shard, ...]:
        """Shards of a dimension of ``size``: plain first, then blocked."""
        return tuple(Shard(dim, count) for count in self.blocks(size))

    def padded(self, dim: int, size: int) -> tuple[Shard, ...]:
        """The padded shard of a dimension of ``size``, where it has one.

        For operators that turn finite padding into finite padding, and a gradient that is
        zero on the padding into such a gradient.
        """
        if size in self.padded_sizes and can_pad(size, self.ranks):
            return (Shard(dim, pad=True),)
        return ()

    def strategy(
        self,
        inputs: dict[int | None, Placement],
        *outputs: Placement,
        call: str = "",
        inner: tuple[InnerCollective, ...] = (),
    ) -> OpStrategy:
        """Strategy from the placements of some slots; the others are replicated.

        A slot of ``None`` is an absent optional tensor. One output placement given for
        several outputs holds for all of them.
        """
        placements = tuple(inputs.get(slot, R) for slot in range(len(self.inputs)))
        if len(outputs) == 1:
            outputs = outputs * len(self.outputs)
        return OpStrategy(inputs=placements, outputs=outputs, call=call, inner=inner)


Generator = Callable[[Op, OpView], Iterator[OpStrategy]]
Localizer = Callable[[Op, OpView, OpStrategy], Op]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One registered rule; ``localizer`` rewrites literals, ``None`` when there are none.

    ``library`` names the module that a program imports to have the operator; ``""`` for ATen.
    """

    target: str
    generator: Generator
    localizer: Localizer | None
    library: str = ""


_RULES: dict[str, Rule] = {}
_MODULE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_TARGET = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*){1,2}")


def register_rule(
    target: str,
    generator: Generator | None = None,
    localizer: Localizer | None = None,
    *,
    library: str = "",
) -> None:
    """Register a rule for ``target``, e.g. ``mylib::fused`` or ``mylib.fused.default``.

    A target without an overload covers all overloads that have no rule of their own.
    Without a generator the operator is replicated. ``library`` is the Python module whose import
    registers an operator outside ATen with torch: programs import it, and none is written for
    such an operator without. Registering a target twice raises ``ValueError``, except from
    the same place, as when the file that does it is loaded again.
    """
    target = target.replace("::", ".")
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} names no operator; write namespace::name, e.g. mylib::fused")
    if library and not _MODULE.fullmatch(library):
        raise ValueError(f"{library!r} is no name of a module, such as mylib.operators")
    generator = generator or _replicated
    known = _RULES.get(target)
    if known is not None and _place(known.generator) != _place(generator):
        raise ValueError(f"{target} already has a rule: {known.generator.__qualname__}")
    _RULES[target] = Rule(target=target, generator=generator, localizer=localizer, library=library)


def _replicated(op: Op, view: OpView) -> Iterator[OpStrategy]:
    """Only whole tensors."""
    yield view.strategy({}, *(R,) * len(view.outputs))


def _place(generator: Generator) -> tuple[str, str, int]:
    code = generator.__code__
    return code.co_filename, generator.__qualname__, code.co_firstlineno


def library_of(target: str) -> str:
    """Module that a program imports to have ``target``; ``""`` where none is known or needed."""
    found = _find(target)
    return "" if found is None else found.library


def library_folders() -> tuple[str, ...]:
    """Folders where this process found the modules of `library_of`."""
    folders: dict[str, None] = {}
    for library in sorted({found.library for found in _RULES.values() if found.library}):
        module = sys.modules.get(library)
        if module is not None and module.__file__ is not None:
            path = Path(module.__file__).resolve()
            depth = library.count(".") + (path.name == "__init__.py")
            folders.setdefault(str(path.parents[depth]))
    return tuple(folders)


def rule(*targets: str, localizer: Localizer | None = None) -> Callable[[Generator], Generator]:
    """Return the decorator that registers a generator for each target."""

    def register(generator: Generator) -> Generator:
        for target in targets:
            register_rule(target, generator, localizer)
        return generator

    return register


def registered_targets() -> tuple[str, ...]:
    """Targets that have a rule, in order of registration."""
    return tuple(_RULES)


def _find(target: str) -> Rule | None:
    return _RULES.get(target) or _RULES.get(target.rpartition(".")[0])


def has_rule(target: str) -> bool:
    """Whether a rule knows ``target``; others can only be replicated."""
    return _find(target) is not None


def _view(op: Op, block: BlockClass, ranks: int) -> OpView:
    return OpView(
        op=op,
        inputs=tuple(map(block.tensor, op.inputs)),
        outputs=tuple(map(block.tensor, op.outputs)),
        ranks=ranks,
        block_counts=block_counts(block),
        padded_sizes=padded_sizes(block),
    )


def _facts(found: Rule, op: Op, view: OpView) -> tuple[OpStrategy, ...]:
    """What a rule states. It may be the user's own, so whatever it raises is told by name."""
    try:
        facts = tuple(found.generator(op, view))
        for fact in facts:
            if not isinstance(fact, OpStrategy):
                raise TypeError(f"it yields {type(fact).__name__}, not view.strategy(...)")
            if (len(fact.inputs), len(fact.outputs)) != (len(view.inputs), len(view.outputs)):
                raise ValueError(f"{fact} is not a placement for each input and output")
    except AutoplanError:
        raise
    except Exception as error:
        raise UsageError(
            f"the rule of {op.target} ({found.generator.__qualname__}) fails: "
            f"{type(error).__name__}: {error}",
            hint="rules yield view.strategy({slot: placement}, output placement); see "
            "docs/placements.md",
        ) from error
    return facts


def strategies(op: Op, block: BlockClass, ranks: int) -> tuple[OpStrategy, ...]:
    """Legal strategies of ``op`` on an axis of ``ranks``, the all-replicated one first.

    An operator without a rule is replicated. One that draws random numbers and has no rule
    raises `UnsupportedOpError`: its copies on the ranks would differ.
    """
    found = _find(op.target)
    if found is None and _draws_random_numbers(op.target):
        raise UnsupportedOpError(
            f"{op.target} ({op.module_path or op.name}) draws random numbers and has no rule",
            hint="register_rule(target, generator) with a call that keeps ranks in step",
        )
    view = _view(op, block, ranks)
    replicated = view.strategy({}, *(R,) * len(view.outputs))
    if ranks == 1 or found is None:
        unsharded = (replicated,) if found is None else _facts(found, op, view)
        return tuple(s for s in unsharded if _all_replicated(s))[:1] or (replicated,)
    legal: dict[OpStrategy, None] = {}
    for strategy in _facts(found, op, view):
        if _is_legal(strategy, view):
            legal.setdefault(strategy)
    if not any(map(_all_replicated, legal)):
        legal = {replicated: None, **legal}
    return tuple(sorted(legal, key=lambda s: not _all_replicated(s)))


def stated_strategies(op: Op, block: BlockClass, ranks: int) -> tuple[OpStrategy, ...]:
    """What the operator's rule states, be its sizes divisible or not."""
    found = _find(op.target)
    return () if found is None else _facts(found, op, _view(op, block, ranks))


def localize(op: Op, block: BlockClass, strategy: OpStrategy, ranks: int) -> Op:
    """``op`` with its literal arguments (sizes, group counts) rewritten for local shards."""
    found = _find(op.target)
    if found is None or found.localizer is None or ranks == 1 or _all_replicated(strategy):
        return op
    return found.localizer(op, _view(op, block, ranks), strategy)


def _all_replicated(strategy: OpStrategy) -> bool:
    return all(isinstance(p, Replicate) for p in (*strategy.inputs, *strategy.outputs))


def _is_legal(strategy: OpStrategy, view: OpView) -> bool:
    pairs = [
        *zip(strategy.inputs, view.inputs, strict=True),
        *zip(strategy.outputs, view.outputs, strict=True),
    ]
    if any(isinstance(p, Partial) and t.kind is not TensorKind.ACTIVATION for p, t in pairs):
        return False  # parameters, batch and boundary tensors are never addends
    return all(_fits(placement, tensor, view.ranks) for placement, tensor in pairs)


def _fits(placement: Placement, tensor: Tensor, ranks: int) -> bool:
    if isinstance(placement, Partial):
        return tensor.dtype.startswith(_FLOATING)
    if isinstance(placement, Shard):
        if not 0 <= placement.dim < len(tensor.shape):
            return False
        size = tensor.shape[placement.dim]
        if placement.pad:
            return can_pad(size, ranks)
        return size > 0 and size % (placement.blocks * ranks) == 0
    return True


_RANDOM = (
    "alpha_dropout", "bernoulli", "exponential", "feature_dropout", "multinomial",
    "native_dropout", "normal", "poisson", "rand", "rand_like", "randint", "randint_like",
    "randn", "randn_like", "randperm", "rrelu", "uniform",
)  # fmt: skip


def _draws_random_numbers(target: str) -> bool:
    namespace, _, rest = target.partition(".")
    return namespace == "aten" and rest.partition(".")[0].strip("_") in _RANDOM
