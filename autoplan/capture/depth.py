"""Capturing deep stacks of layers from a few of them.

The items of a list of modules form a sequence of structures: 126 equal ones, 3 dense and
58 with experts, sliding and full attention in turn. Each run of a repeated period is cut
to a few repeats while the model is exported (whole periods go, so alternations stay
aligned), and the instances of the others are written down from those kept. `Witness` proves
that the short model stands for the whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from types import FunctionType
from typing import Any

from torch import nn

from autoplan.capture.numbers import Followed
from autoplan.ir.graph import BlockInstance, is_bindable

__all__ = [
    "Depth",
    "DepthError",
    "Run",
    "Stack",
    "find_runs",
    "find_stacks",
    "replicate",
    "shortened",
]

_POSITION = ("idx", "index", "layer_id", "layer_number", "block_id", "depth")
_COUNT = ("layer", "depth", "block")
# Blocks that are no item of a list, numbered by their place in the chain.
_NUMBERED = re.compile(r"(between|block)_\d+")


class DepthError(Exception):
    """A shortened stack does not stand for the whole; never leaves this package."""

    def __init__(self, text: str, stack: Stack | None = None) -> None:
        super().__init__(text)
        self.stack = stack


@dataclass(frozen=True, slots=True)
class Depth:
    """How many ``repeats`` of a run to keep, and whether its two ends may be special."""

    repeats: int
    ends_differ: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Positions ``first`` onwards: ``repeats`` times the same ``period`` structures."""

    first: int
    period: int
    repeats: int

    def kept(self, keep: int) -> tuple[int, ...]:
        """Repeats that stay: the first, the last, and others evenly between."""
        if self.repeats <= keep:
            return tuple(range(self.repeats))
        return tuple(index * (self.repeats - 1) // (keep - 1) for index in range(keep))

    def items(self, repeat: int) -> range:
        """Positions of one repeat."""
        start = self.first + repeat * self.period
        return range(start, start + self.period)


@dataclass(frozen=True, slots=True)
class Stack:
    """Lists of ``length`` modules that are walked together, by FQN, and their long runs."""

    paths: tuple[str, ...]
    length: int
    runs: tuple[Run, ...]

    def kept(self, keep: int) -> tuple[int, ...]:
        """Positions that stay when each run has ``keep`` repeats."""
        removed = {
            position
            for run in self.runs
            for repeat in set(range(run.repeats)) - set(run.kept(keep))
            for position in run.items(repeat)
        }
        return tuple(position for position in range(self.length) if position not in removed)


def find_stacks(module: nn.Module, *, keep: int) -> tuple[Stack, ...]:
    """Outermost lists with runs of more than ``keep`` repeats; lists of one parent together."""
    modules = dict(module.named_modules())
    groups: dict[tuple[str, int], list[str]] = {}
    for path, child in modules.items():
        if _is_list(child) and len(child._modules) > keep:
            groups.setdefault((_parent(path), len(child._modules)), []).append(path)
    tied = _tied(module)
    found: list[Stack] = []
    for (parent, length), paths in groups.items():
        if any(f"{parent}.".startswith(f"{outer}.") for stack in found for outer in stack.paths):
            continue
        settings = [values for _, _, values in _settings(modules, paths, length)]
        tables = [values for values in settings if not isinstance(values, int)]
        structures = [[_structure(i, tied) for i in modules[path].children()] for path in paths]
        items = [
            *zip(
                zip(*structures, strict=True),
                zip(*tables, strict=True) if tables else [()] * length,
                strict=True,
            )
        ]
        kinds = _numbered(items)
        if 2 * len(set(kinds)) > length:
            # Hardly two are equal: they may be so but for a rate or a scale.
            kinds = _numbered(map(_without_numbers, items))
        runs = tuple(run for run in find_runs(kinds, keep=keep) if run.repeats > keep)
        if runs:
            found.append(Stack(tuple(paths), length, runs))
    return tuple(found)


def _numbered(items: Iterable[Any]) -> list[int]:
    seen: dict[Any, int] = {}
    return [seen.setdefault(item, len(seen)) for item in items]


def _without_numbers(item: Any) -> Any:
    """The item with one name for all floats that blocks may bind."""
    if isinstance(item, tuple):
        return tuple(map(_without_numbers, item))
    return "a number" if is_bindable(item) else item


def find_runs(kinds: list[int], *, keep: int) -> tuple[Run, ...]:
    """Split of a sequence into runs that leaves the fewest items at ``keep`` repeats each."""
    count = len(kinds)
    best: list[tuple[int, tuple[Run, ...]]] = [(0, ())] * (count + 1)
    for first in reversed(range(count)):
        cost, rest = best[first + 1]
        choice = (cost + 1, (Run(first, 1, 1), *rest))
        for period in range(1, (count - first) // 2 + 1):
            same = 0
            while (
                first + period + same < count
                and kinds[first + same] == kinds[first + period + same]
            ):
                same += 1
            repeats = same // period + 1
            if repeats < 2:
                continue
            cost, rest = best[first + period * repeats]
            cost += period * min(repeats, keep)
            if cost < choice[0] or (cost == choice[0] and choice[1][0].repeats == 1):
                choice = (cost, (Run(first, period, repeats), *rest))
        best[first] = choice
    return best[0][1]


@contextmanager
def shortened(module: nn.Module, stacks: tuple[Stack, ...], *, keep: int) -> Iterator[None]:
    """Within the context each run has ``keep`` repeats; counts and settings by layer say so too."""
    settings: list[tuple[dict[str, Any], str, Any]] = []
    lists: list[tuple[Any, type[nn.Module], dict[str, Any]]] = []
    modules: dict[str, Any] = dict(module.named_modules())
    for stack in stacks:
        kept = stack.kept(keep)
        for owner, name, value in _settings(modules, stack.paths, stack.length):
            settings.append((owner, name, value))
            owner[name] = (
                len(kept) if isinstance(value, int) else type(value)(value[i] for i in kept)
            )
        for path in stack.paths:
            child = modules[path]
            lists.append((child, type(child), dict(child._modules)))
            if isinstance(child, nn.ModuleList):
                child.__class__ = _by_position(type(child))  # type: ignore[assignment]
            for key in set(child._modules) - set(map(str, kept)):
                del child._modules[key]
    try:
        yield
    finally:
        for child, kind, items in lists:
            child.__class__ = kind
            child._modules.clear()
            child._modules.update(items)
        for owner, name, value in reversed(settings):
            owner[name] = value


def replicate(
    instances: list[BlockInstance],
    stacks: tuple[Stack, ...],
    depth: Depth,
    whole: Sequence[BlockInstance] = (),
) -> list[BlockInstance]:
    """Instances of the whole stacks, from those of the repeats kept.

    Those left out get their numbers from ``whole``, the log of the whole model; without one
    they have none.
    """
    for stack in stacks:
        for run in stack.runs:
            instances = _replicate_run(instances, stack, run, depth, whole)
    return [
        replace(instance, name=f"{number[1]}_{index}")
        if (number := _NUMBERED.fullmatch(instance.name))
        else instance
        for index, instance in enumerate(instances)
    ]


def _replicate_run(
    instances: list[BlockInstance],
    stack: Stack,
    run: Run,
    depth: Depth,
    log: Sequence[BlockInstance],
) -> list[BlockInstance]:
    kept = run.kept(depth.repeats)
    groups, start, end = _groups(instances, stack, run, kept)
    samples = dict(zip(kept, groups, strict=True))
    if depth.ends_differ:
        samples = {repeat: samples[repeat] for repeat in kept[1:-1]}
    source, sample = next(iter(samples.items()))
    for repeat, group in samples.items():
        moved = [_moved(instance, stack, run, source, repeat) for instance in sample]
        # What ends at a block is a matter of those after it.
        plain = [_anonymous(replace(instance, unused=(), numbers=())) for instance in group]
        if plain != moved:
            raise DepthError(f"{stack.paths[0]}: repeats {source} and {repeat} differ", stack)
    whole: list[BlockInstance] = []
    given = dict(zip(kept, groups, strict=True))
    followed = _followed(samples, stack, run, log) if log else None
    for repeat in range(run.repeats):
        if repeat in given:
            whole += given[repeat]
        else:
            group = [_moved(instance, stack, run, source, repeat) for instance in sample]
            if followed is not None:
                numbers = followed.at(repeat)
                if numbers is None:
                    raise DepthError(f"{stack.paths[0]}: numbers of item {repeat} unclear", stack)
                left = iter(numbers)
                group = [
                    replace(instance, numbers=tuple(islice(left, len(bound.numbers))))
                    for instance, bound in zip(group, sample, strict=True)
                ]
            whole += group
    return [*instances[:start], *whole, *instances[end:]]


def _followed(
    samples: Mapping[int, list[BlockInstance]],
    stack: Stack,
    run: Run,
    log: Sequence[BlockInstance],
) -> Followed | None:
    """Where the numbers of the repeats left out are; None if the blocks have no numbers."""
    if not any(instance.numbers for group in samples.values() for instance in group):
        return None
    logged, _, _ = _groups(log, stack, run, range(run.repeats))
    return Followed(
        known={repeat: _numbers(group) for repeat, group in samples.items()},
        logged=dict(enumerate(map(_numbers, logged))),
    )


def _numbers(group: Iterable[BlockInstance]) -> list[float]:
    return [number for instance in group for number in instance.numbers]


def _groups(
    instances: Sequence[BlockInstance], stack: Stack, run: Run, kept: Sequence[int]
) -> tuple[list[list[BlockInstance]], int, int]:
    """Consecutive instances of each repeat kept, and where the first begins and the last ends."""
    repeats = {position: repeat for repeat in kept for position in run.items(repeat)}
    found: dict[int, list[int]] = {repeat: [] for repeat in kept}
    prefixes = tuple(f"{path}." for path in stack.paths)
    named = [k for k, instance in enumerate(instances) if instance.name.startswith(prefixes)]
    # A head may use a parameter of an item: it is no part of the stack.
    inside = range(named[0], named[-1] + 1) if named else range(len(instances))
    for index in inside:
        instance = instances[index]
        owners = {repeats[p] for p in _positions(instance, stack) if p in repeats}
        if len(owners) > 1:
            raise DepthError(f"{stack.paths[0]}: block {instance.name} spans items", stack)
        for repeat in owners:
            found[repeat].append(index)
    present = [indices for indices in found.values() if indices]
    # The loss may not use the last item, but then it is none of those that stand for others.
    is_last_unused = len(present) == len(found) - 1 >= 2 and not found[kept[-1]]
    if len(present) < len(found) and not is_last_unused:
        raise DepthError(f"{stack.paths[0]}: an item forms no block", stack)
    starts = [indices[0] for indices in present]
    stops = [*starts[1:], present[-1][-1] + 1]
    for start, stop, indices in zip(starts, stops, present, strict=True):
        if not all(start <= index < stop for index in indices):
            raise DepthError(f"{stack.paths[0]}: its items do not follow each other", stack)
    groups = [list(instances[start:stop]) for start, stop in zip(starts, stops, strict=True)]
    if is_last_unused:
        # That it is unused is proved by its parameters.
        if len(groups[0]) != len(groups[-1]) or not any(i.parameters for i in groups[-1]):
            raise DepthError(f"{stack.paths[0]}: its end is unlike its other items", stack)
        groups.append([])
    return groups, starts[0], stops[-1]


def _positions(instance: BlockInstance, stack: Stack) -> set[int]:
    """Items of the stack that a block belongs to: by its name, else by what it binds."""
    for names in ((instance.name,), (*instance.parameters, *instance.buffers)):
        found = {
            int(key)
            for path in stack.paths
            for name in names
            if name.startswith(f"{path}.")
            and (key := name[len(path) + 1 :].split(".")[0]).isdigit()
        }
        if found:
            return found
    return set()


def _moved(
    instance: BlockInstance, stack: Stack, run: Run, source: int, target: int
) -> BlockInstance:
    pairs = {
        f"{path}.{old}": f"{path}.{new}"
        for path in stack.paths
        for old, new in zip(run.items(source), run.items(target), strict=True)
    }
    deep = {path.count(".") + 2 for path in stack.paths}

    def move(fqn: str) -> str:
        parts = fqn.split(".")
        for count in deep:
            new = pairs.get(".".join(parts[:count]))
            if new is not None:
                return ".".join([new, *parts[count:]])
        return fqn

    return _anonymous(
        replace(
            instance,
            name=move(instance.name),
            parameters=tuple(map(move, instance.parameters)),
            buffers=tuple(map(move, instance.buffers)),
            numbers=(),
        )
    )


def _anonymous(instance: BlockInstance) -> BlockInstance:
    return replace(instance, name=_NUMBERED.sub(r"\1_0", instance.name))


def _is_list(child: nn.Module) -> bool:
    """A list whose items are modules of their own under the keys 0, 1, ..."""
    if not isinstance(child, nn.ModuleList | nn.Sequential):
        return False
    items = child._modules
    numbered = list(items) == [str(index) for index in range(len(items))]
    return numbered and len(set(map(id, items.values()))) == len(items)


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _by_position(kind: type[nn.Module]) -> type[nn.Module]:
    """The list type with ``items[i]`` by position: its keys have gaps while it is short."""

    def item(self: Any, index: Any) -> Any:
        if isinstance(index, int):
            return list(self._modules.values())[index]
        return nn.ModuleList(list(self._modules.values())[index])

    return type(kind.__name__, (kind,), {"__getitem__": item})


def _settings(
    modules: Mapping[str, nn.Module], paths: Sequence[str], length: int
) -> list[tuple[dict[str, Any], str, Any]]:
    """Counts of layers and lists of one value a layer, on the modules around and their config.

    Each as the ``__dict__`` that holds it, the name and the value.
    """
    found: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
    for path in paths:
        ancestor = path
        has_config = False
        while ancestor:
            ancestor = _parent(ancestor)
            owner = modules[ancestor]
            owners: list[Any] = [owner]
            config = getattr(owner, "config", None)
            if hasattr(config, "__dict__") and not has_config:
                owners.append(config)
            for holder in owners:
                values: dict[str, Any] = vars(holder)
                for name, value in values.items():
                    if _is_setting(name, value, length):
                        found[id(values), name] = (values, name, value)
                        has_config = has_config or holder is config
    return list(found.values())


def _is_setting(name: str, value: Any, length: int) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return value == length and any(word in name for word in _COUNT)
    return (
        type(value) in (list, tuple)
        and len(value) == length
        and all(isinstance(item, bool | int | float | str | None) for item in value)
    )


def _tied(module: nn.Module) -> dict[int, str]:
    """First FQN of each parameter that has several."""
    first: dict[int, str] = {}
    tied: dict[int, str] = {}
    for fqn, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            tied[id(parameter)] = first[id(parameter)]
        first.setdefault(id(parameter), fqn)
    return tied


def _structure(module: nn.Module, tied: Mapping[int, str]) -> tuple[Any, ...]:
    """What must be equal for two modules to trace alike."""
    tensors: Mapping[str, Any] = {**module._parameters, **module._buffers}
    return (
        type(module),
        tuple(
            (
                name,
                None
                if t is None
                else (tuple(t.shape), t.dtype, t.requires_grad, tied.get(id(t), "")),
            )
            for name, t in tensors.items()
        ),
        tuple(
            (name, _printed(value))
            for name, value in vars(module).items()
            if not name.startswith("_") and not name.endswith(_POSITION)
        ),
        tuple((name, _structure(child, tied)) for name, child in module.named_children()),
    )


def _printed(value: Any) -> Any:
    """A setting of a module in a form that can be compared; other objects by their type."""
    if is_bindable(value):
        return value
    if isinstance(value, bool | int | float | str | None):
        return repr(value)
    if type(value) in (list, tuple):
        return tuple(_printed(item) for item in value)
    return value.__code__ if isinstance(value, FunctionType) else type(value)
