"""What torch.compile makes of the operators between products: groups that are one kernel.

Elementwise operators, dropout, norms, softmax and reductions over trailing dims join the group
that made one of their inputs, unless that would close a cycle through an operator outside.
Everything else (products, attention, convolutions, gathers, losses) ends a group. Views belong
to whoever reads them.

A group reads each outside tensor once and writes each tensor that is used outside. Its backward
is assumed to compute the forward again from the group's own inputs: it reads them (where a
member saves anything), reads a gradient for each outside use of what the group made, and writes
each distinct gradient of an input; a sum hands its gradient on unchanged. Vectors of parameters
have their gradients summed in a second kernel, which reads the same again; groups that read a
tensor in common sum theirs in one. Of a relu the forward writes a mask of a byte an element, and
the backward reads that.

So that operators can be priced alone, each bears a `Share`: the crossing tensors that it is the
first to read, or makes. The group's first operator bears the launches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from autoplan.costs.fanout import summed_slots
from autoplan.ir.elementwise import ADDITIVE, ELEMENTWISE, LINEAR
from autoplan.ir.graph import BlockClass, Op, TensorKind, aten_name
from autoplan.ir.memo import by_identity

__all__ = ["Fusion", "Group", "Share", "fusion"]

_POINTWISE = frozenset(
    (*ELEMENTWISE, *LINEAR, *ADDITIVE, "mul", "div", "dropout", "native_dropout", "cat")
)
_ROWS = ("layer_norm", "native_layer_norm", "rms_norm")
_SOFTMAX = ("softmax", "_softmax", "log_softmax", "_log_softmax")
_REDUCTIONS = ("sum.dim_IntList", "mean.dim", "amax.default", "amin.default")


@dataclass(frozen=True, slots=True)
class Share:
    """What one member bears of its group, as (tensor among its own, how often it is moved).

    A mask is a part of the tensor that it is of.

    ``inner`` are its inputs and outputs that are also made or read by other members.
    """

    group: int
    forward: tuple[tuple[str, float], ...]
    backward: tuple[tuple[str, float], ...]
    forward_launches: int
    backward_launches: int
    inner: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Operators that are one kernel forward, and whole bytes that cross its border."""

    members: tuple[str, ...]
    forward: int
    backward: int
    forward_launches: int
    backward_launches: int


@dataclass(frozen=True, slots=True)
class Fusion:
    """Groups of a block, the share of each member, and what is no longer paid elsewhere.

    ``absorbed`` are views that only members read; ``summed`` maps other operators to slots
    whose gradients are still added in a kernel of their own. ``inner`` tensors pass from member
    to member, ``written`` ones are what groups write.
    """

    groups: tuple[Group, ...]
    shares: Mapping[str, Share]
    absorbed: frozenset[str]
    summed: Mapping[str, tuple[int, ...]]

    inner: frozenset[str]
    written: frozenset[str]


@by_identity(1024)
def fusion(block: BlockClass) -> Fusion:
    """How a block is fused when it is compiled as a whole."""
    return _Fuser(block).result()


def _is_fusible(op: Op, block: BlockClass) -> bool:
    name, overload = aten_name(op.target).removesuffix("_"), op.target.rsplit(".", 1)[-1]
    if not name or len(op.outputs) == 0:
        return False
    if name in _POINTWISE or f"{name}.{overload}" in _POINTWISE or name in _ROWS:
        return True
    if name in _SOFTMAX or f"{name}.{overload}" in _REDUCTIONS:
        rank = len(block.tensor(op.inputs[0]).shape)
        given = op.args[1] if len(op.args) > 1 else dict(op.kwargs).get("dim")
        dims = given if isinstance(given, tuple) else (given,)
        if not dims or not all(isinstance(dim, int) for dim in dims):
            return False
        reduced = sorted(dim % rank for dim in dims if isinstance(dim, int))
        return reduced == list(range(rank - len(reduced), rank)) and len(reduced) < rank
    return False


def _is_relu(op: Op) -> bool:
    return aten_name(op.target).removesuffix("_") == "relu"


class _Fuser:
    def __init__(self, block: BlockClass) -> None:
        self.block = block
        self.producer: dict[str, Op] = {name: op for op in block.ops for name in op.outputs}
        self.parent: list[int] = []
        self.behind: list[set[int]] = []  # groups that a group needs through an outsider
        self.group_of: dict[str, int] = {}
        self._form()
        self.users: dict[str, dict[str, Op]] = {}
        for op in block.ops:
            if not self.is_view(op):
                for name in op.inputs:
                    self.users.setdefault(self.root(name), {})[op.name] = op
        self.handed_on = {self.root(name) for name in block.outputs}

    def is_view(self, op: Op) -> bool:
        return all(self.block.tensor(name).base != name for name in op.outputs)

    def root(self, name: str) -> str:
        """The tensor that a view is of."""
        while name in self.producer and self.is_view(self.producer[name]):
            name = self.producer[name].inputs[0]
        return name

    def find(self, group: int) -> int:
        while self.parent[group] != group:
            group = self.parent[group]
        return group

    def _form(self) -> None:
        before: dict[str, set[int]] = {}  # by tensor: groups that an outsider stands behind
        for op in self.block.ops:
            roots = [self.root(name) for name in op.inputs]
            behind: set[int] = set()
            makers: set[int] = set()
            for name in roots:
                behind |= before.get(name, set())
                maker = self.producer.get(name)
                if maker is not None and maker.name in self.group_of:
                    makers.add(self.group_of[maker.name])
            if self.is_view(op):
                continue
            if not _is_fusible(op, self.block):
                for name in op.outputs:
                    before[name] = behind | makers
                continue
            group = self._join(behind, makers)
            self.group_of[op.name] = group
            for name in op.outputs:
                # A maker that was not joined lies outside, as a product would.
                left = {m for m in makers if self.find(m) != self.find(group)}
                before[name] = behind | left

    def _join(self, behind: set[int], makers: set[int]) -> int:
        blocked = {self.find(group) for group in behind}
        group = -1
        for candidate in sorted({self.find(maker) for maker in makers}, reverse=True):
            if candidate in blocked:
                continue
            if group < 0:
                group = candidate
            elif not self._reaches(group, candidate) and not self._reaches(candidate, group):
                self.parent[candidate] = group
                self.behind[group] |= self.behind[candidate]
        if group < 0:
            group = len(self.parent)
            self.parent.append(group)
            self.behind.append(set())
        self.behind[group] |= behind | {m for m in makers if self.find(m) != group}
        return group

    def _reaches(self, later: int, earlier: int) -> bool:
        """Whether ``later`` needs ``earlier`` through something outside both."""
        todo, seen = list(self.behind[later]), set[int]()
        while todo:
            group = self.find(todo.pop())
            if group == earlier:
                return True
            if group not in seen:
                seen.add(group)
                todo += self.behind[group]
        return False

    def party(self, op: Op) -> str:
        """Who reads: a whole group, or an operator outside of all."""
        group = self.group_of.get(op.name)
        return op.name if group is None else f"group {self.find(group)}"

    def parties(self, root: str, *, learning: bool) -> set[str]:
        """Readers of a tensor; those that send a gradient back, where asked for these."""
        found = {
            self.party(op)
            for op in self.users.get(root, {}).values()
            if not learning or self.learns(op)
        }
        return found | ({"next block"} if root in self.handed_on else set())

    def learns(self, op: Op) -> bool:
        return any(self.block.tensor(name).requires_grad for name in op.outputs)

    def result(self) -> Fusion:
        members: dict[int, list[Op]] = {}
        for op in self.block.ops:
            if op.name in self.group_of:
                members.setdefault(self.find(self.group_of[op.name]), []).append(op)
        groups, shares = [], dict[str, Share]()
        summed: set[str] = set()  # outside tensors that kernels of vectors' gradients read
        for index, ops in enumerate(members.values()):
            found = list(_GroupShares(self, ops, index, summed).shares())
            shares.update(found)
            own = [share for _, share in found]
            size = self.block.tensor
            groups.append(
                Group(
                    members=tuple(op.name for op in ops),
                    forward=round(sum(size(n).size * k for s in own for n, k in s.forward)),
                    backward=round(sum(size(n).size * k for s in own for n, k in s.backward)),
                    forward_launches=sum(s.forward_launches for s in own),
                    backward_launches=sum(s.backward_launches for s in own),
                )
            )
        inner = frozenset(name for share in shares.values() for name in share.inner)
        written = frozenset(
            name
            for op in self.block.ops
            if op.name in shares
            for name in op.outputs
            if (name, 1) in shares[op.name].forward
        )
        return Fusion(
            groups=tuple(groups),
            shares=shares,
            absorbed=self._absorbed(),
            summed=self._summed(),
            inner=inner,
            written=written,
        )

    def _absorbed(self) -> frozenset[str]:
        readers: dict[str, list[Op]] = {}
        for op in self.block.ops:
            for name in op.inputs:
                readers.setdefault(name, []).append(op)
        absorbed: set[str] = set()
        for op in reversed(self.block.ops):
            if self.is_view(op) and not self.handed_on & set(op.outputs):
                read_by = [reader for name in op.outputs for reader in readers.get(name, ())]
                if all(r.name in self.group_of or r.name in absorbed for r in read_by):
                    absorbed.add(op.name)
        return frozenset(absorbed)

    def _summed(self) -> dict[str, tuple[int, ...]]:
        left = {}
        for name, slots in summed_slots(self.block).items():
            op = next(op for op in self.block.ops if op.name == name)
            if name in self.group_of:
                continue
            kept = tuple(s for s in slots if not self._sums_within(self.root(op.inputs[s])))
            if kept:
                left[name] = kept
        return left

    def _sums_within(self, root: str) -> bool:
        """Whether some group's kernel adds up the gradients of a tensor."""
        maker = self.producer.get(root)
        if maker is not None and maker.name in self.group_of:
            return True
        return any(op.name in self.group_of for op in self.users.get(root, {}).values())


class _GroupShares:
    def __init__(self, fuser: _Fuser, ops: list[Op], index: int, summed: set[str]) -> None:
        self.fuser, self.ops, self.index, self.summed = fuser, ops, index, summed
        self.block = fuser.block
        self.own = {op.name for op in ops}
        self.party = fuser.party(ops[0])
        self.made = {name for op in ops for name in op.outputs}
        # By outside tensor: the member that reads most of it, and under which name.
        self.payer: dict[str, tuple[str, str]] = {}
        for op in ops:
            for name in op.inputs:
                root = fuser.root(name)
                if root in self.made:
                    continue
                size = self.block.tensor(name).size
                if root not in self.payer or size > self.block.tensor(self.payer[root][1]).size:
                    self.payer[root] = (op.name, name)

    def shares(self) -> Iterator[tuple[str, Share]]:
        """Share of each member."""
        forward: dict[str, list[tuple[str, float]]] = {op.name: [] for op in self.ops}
        for payer, name in self.payer.values():
            forward[payer].append((name, 1))
        for op in self.ops:
            forward[op.name] += [(name, 1) for name in op.outputs if self._leaves(name)]
            forward[op.name] += self._masks(op)
        backward, launches = self._backward()
        for op in self.ops:
            first = op is self.ops[0]
            yield (
                op.name,
                Share(
                    group=self.index,
                    forward=tuple(forward[op.name]),
                    backward=tuple(backward[op.name]),
                    forward_launches=int(first),
                    backward_launches=launches if first else 0,
                    inner=tuple(
                        dict.fromkeys(
                            name for name in (*op.inputs, *op.outputs) if self._is_inner(name)
                        )
                    ),
                ),
            )

    def _leaves(self, name: str) -> bool:
        return bool(self.fuser.parties(name, learning=False) - {self.party})

    def _is_inner(self, name: str) -> bool:
        root = self.fuser.root(name)
        readers = self.fuser.users.get(root, {})
        return root in self.made and any(reader in self.own for reader in readers)

    def _masks(self, op: Op) -> list[tuple[str, float]]:
        """What is kept of a relu's result: whether it is zero, a byte an element."""
        if not _is_relu(op) or not self.fuser.learns(op):
            return []
        tensor = self.block.tensor(op.outputs[0])
        return [(op.outputs[0], tensor.numel / tensor.size)]

    def _backward(self) -> tuple[dict[str, list[tuple[str, float]]], int]:
        moved: dict[str, list[tuple[str, float]]] = {op.name: [] for op in self.ops}
        written = self._written()
        vectors = self._vectors()
        if not written and not vectors:
            return moved, 0
        saved = self._saved()
        for op in self.ops:
            for name in op.outputs:
                uses = len(self.fuser.parties(name, learning=True) - {self.party})
                if uses and self.block.tensor(name).requires_grad:
                    moved[op.name].append((name, uses))
            moved[op.name] += self._masks(op)
        for root in saved:
            payer, name = self.payer[root]
            moved[payer].append((name, 1))
        sums = 0
        for roots in written:
            payer, name = self.payer[roots[0]]
            moved[payer].append((name, 1 if len(roots) > 1 else 1 + self._others(roots[0])))
            for root in roots if len(roots) > 1 else ():
                if self._others(root):
                    # Others may need the gradient that it shares: they are added to it later.
                    payer, name = self.payer[root]
                    moved[payer].append((name, 2 + self._others(root)))
                    sums += 1
        launches = sums + (1 if written else 0)
        if vectors:
            op = next(op for op in self.ops if op.name == vectors)
            shape = self.block.tensor(op.outputs[0]).shape
            again = {r for r in saved if self.block.tensor(self.payer[r][1]).shape == shape}
            uses = len(self.fuser.parties(op.outputs[0], learning=True) - {self.party})
            moved[op.name].append((op.outputs[0], max(1, uses) + len(again - self.summed)))
            launches += 0 if again & self.summed else 1
            self.summed |= again
        return moved, launches

    def _vectors(self) -> str:
        """First member that reads a parameter which learns; empty if there is none."""
        for op in self.ops:
            for name in op.inputs:
                tensor = self.block.tensor(name)
                if tensor.kind is TensorKind.PARAMETER and tensor.requires_grad:
                    return op.name
        return ""

    def _others(self, root: str) -> int:
        """Other gradients of an outside tensor that this group adds to its own."""
        fuser = self.fuser
        maker = fuser.producer.get(root)
        if maker is not None and maker.name in fuser.group_of:
            return 0  # the group that made it adds them
        readers = [op for op in fuser.users[root].values() if fuser.learns(op)]
        first = next((op for op in readers if op.name in fuser.group_of), None)
        if first is None or first.name not in self.own:
            return 0
        return len(fuser.parties(root, learning=True)) - 1

    def _saved(self) -> list[str]:
        """Outside tensors that the backward needs to compute what members save."""
        needed = {
            self.fuser.root(n)
            for op in self.ops
            if self.fuser.learns(op) and not _is_relu(op)
            for n in op.saved
        }
        for op in reversed(self.ops):
            if needed & set(op.outputs):
                needed |= {self.fuser.root(name) for name in op.inputs}
        return [root for root in self.payer if root in needed]

    def _written(self) -> list[list[str]]:
        """Outside tensors whose gradients the group writes, those with the same one together."""
        written: dict[str, list[str]] = {}
        for root in self.payer:
            tensor = self.block.tensor(root)
            if not tensor.requires_grad or tensor.kind is TensorKind.PARAMETER:
                continue
            gradient = self._gradient(root)
            if gradient:
                written.setdefault(gradient, []).append(root)
        return list(written.values())

    def _gradient(self, root: str) -> str:
        """Name of the gradient that members give a tensor; empty if it exists already."""
        fuser = self.fuser
        while True:
            readers = [op for n, op in fuser.users.get(root, {}).items() if n in self.own]
            outside = len(fuser.parties(root, learning=True) - {self.party})
            if root in self.made and not readers and outside == 1:
                return ""
            if root in self.made and outside:
                return root
            if len(readers) != 1 or not self._passes(readers[0], root):
                return root
            root = readers[0].outputs[0]

    def _passes(self, op: Op, root: str) -> bool:
        """Whether the gradient of the operator's output is that of its input."""
        made = self.block.tensor(op.outputs[0])
        read = [self.block.tensor(n) for n in op.inputs if self.fuser.root(n) == root]
        return (
            aten_name(op.target) == "add"
            and not op.kwargs
            and [(x.shape, x.dtype) for x in read] == [(made.shape, made.dtype)]
            and made.numel == self.block.tensor(root).numel
        )
