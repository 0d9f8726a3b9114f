"""Capturing a deep stack of equal layers from a few of them.

A list of structurally equal modules is cut to a few items while the model is exported;
the instances of the items left out are then written down without tracing them. Two depths
are traced and must agree, so that a model that looks at its own depth is caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from autoplan.ir.graph import BlockInstance

__all__ = ["DepthError", "Stack", "find_stacks", "replicate", "shortened"]

_POSITION = ("idx", "index", "layer_id", "layer_number", "block_id", "depth")


class DepthError(Exception):
    """A shortened stack does not stand for the whole; never leaves this package."""


@dataclass(frozen=True, slots=True)
class Stack:
    """FQN of a list of ``length`` structurally equal modules."""

    path: str
    length: int


def find_stacks(module: nn.Module, *, keep: int) -> tuple[Stack, ...]:
    """Outermost lists with more than ``keep`` items, all structurally equal."""
    found: list[Stack] = []
    for path, child in module.named_modules():
        if any(path.startswith(f"{stack.path}.") for stack in found):
            continue
        if not isinstance(child, nn.ModuleList | nn.Sequential) or len(child) <= keep:
            continue
        items = list(child.children())
        first = _structure(items[0])
        if len(items) == len(child) and all(_structure(item) == first for item in items[1:]):
            found.append(Stack(path, len(child)))
    return tuple(found)


@contextmanager
def shortened(module: nn.Module, stacks: tuple[Stack, ...], *, keep: int) -> Iterator[None]:
    """Within the context each stack has ``keep`` items; configurations say so too."""
    removed: list[tuple[dict[str, Any], dict[str, Any]]] = []
    configs: list[tuple[Any, int]] = []
    for stack in stacks:
        modules: dict[str, Any] = module.get_submodule(stack.path)._modules
        before = dict(modules)
        removed.append((modules, before))
        for key in list(before)[keep:]:
            del modules[key]
        for config in _configs(module, stack.length):
            configs.append((config, stack.length))
            config.num_hidden_layers = keep
    try:
        yield
    finally:
        for modules, before in removed:
            modules.clear()
            modules.update(before)
        for config, length in configs:
            config.num_hidden_layers = length


def replicate(
    instances: list[BlockInstance], stacks: tuple[Stack, ...], *, keep: int
) -> list[BlockInstance]:
    """Instances of the whole stacks, from those of their first ``keep`` items."""
    for stack in stacks:
        instances = _replicate_one(instances, stack, keep)
    return instances


def _replicate_one(instances: list[BlockInstance], stack: Stack, keep: int) -> list[BlockInstance]:
    groups: list[list[BlockInstance]] = []
    positions: list[int] = []
    for item in range(keep):
        prefix = f"{stack.path}.{item}"
        inside = [
            index
            for index, instance in enumerate(instances)
            if instance.name == prefix or instance.name.startswith(f"{prefix}.")
        ]
        positions += inside
        groups.append([instances[index] for index in inside])
    if not positions or positions != list(range(positions[0], positions[0] + len(positions))):
        raise DepthError(f"{stack.path}: its items do not follow each other")
    for item, group in enumerate(groups[1:], start=1):
        if group != [_moved(instance, stack.path, 0, item) for instance in groups[0]]:
            raise DepthError(f"{stack.path}.{item} differs from {stack.path}.0")
    added = [
        _moved(instance, stack.path, 0, item)
        for item in range(keep, stack.length)
        for instance in groups[0]
    ]
    end = positions[-1] + 1
    return [*instances[:end], *added, *instances[end:]]


def _moved(instance: BlockInstance, path: str, source: int, target: int) -> BlockInstance:
    old, new = f"{path}.{source}", f"{path}.{target}"

    def move(fqn: str) -> str:
        if fqn == old or fqn.startswith(f"{old}."):
            return new + fqn[len(old) :]
        return fqn

    return replace(
        instance,
        name=move(instance.name),
        parameters=tuple(map(move, instance.parameters)),
        buffers=tuple(map(move, instance.buffers)),
    )


def _configs(module: nn.Module, length: int) -> list[Any]:
    found: dict[int, Any] = {}
    for child in module.modules():
        config = getattr(child, "config", None)
        if config is not None and getattr(config, "num_hidden_layers", None) == length:
            found[id(config)] = config
    return list(found.values())


def _structure(module: nn.Module) -> tuple[Any, ...]:
    """What must be equal for two modules to trace alike."""
    tensors: Mapping[str, Any] = {**module._parameters, **module._buffers}
    return (
        type(module),
        tuple(
            (name, None if t is None else (tuple(t.shape), t.dtype, t.requires_grad))
            for name, t in tensors.items()
        ),
        tuple(
            (name, value)
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str | tuple | None)
            and not name.startswith("_")
            and not name.endswith(_POSITION)
        ),
        tuple((name, _structure(child)) for name, child in module.named_children()),
    )
