"""Names of block classes in the program."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["class_names"]

_SUFFIX = {"none": "", "selective": "SelectivelyRecomputed", "full": "Recomputed"}


def class_names(families: Sequence[int], levels: Sequence[str]) -> tuple[str, ...]:
    """Distinct names: kinds of block are numbered, variants of one are told by recompute level.

    ``families`` are those of `ir.variants.class_families`, ``levels`` of recompute by class.

    >>> class_names((0, 1, 1, 3), ("none", "none", "full", "none"))
    ('Block0', 'Block1', 'Block1Recomputed', 'Block2')
    >>> class_names((0, 0), ("full", "full"))
    ('Block0', 'Block0_2')
    """
    numbers = {family: number for number, family in enumerate(dict.fromkeys(families))}
    names: list[str] = []
    for family, level in zip(families, levels, strict=True):
        of_family = {other for kin, other in zip(families, levels, strict=True) if kin == family}
        stem = f"Block{numbers[family]}" + (_SUFFIX[level] if len(of_family) > 1 else "")
        name, count = stem, 1
        while name in names:
            count += 1
            name = f"{stem}_{count}"
        names.append(name)
    return tuple(names)
