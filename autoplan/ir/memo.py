"""Results kept for the last objects asked about, told apart by identity.

Blocks are large and frozen: hashing one costs as much as many of the answers kept here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Concatenate, ParamSpec, TypeVar

__all__ = ["by_identity"]

_First = TypeVar("_First")
_Rest = ParamSpec("_Rest")
_Result = TypeVar("_Result")


def by_identity(
    size: int,
) -> Callable[
    [Callable[Concatenate[_First, _Rest], _Result]], Callable[Concatenate[_First, _Rest], _Result]
]:
    """Decorate a function to keep its last ``size`` results.

    The first argument must never change; the others are positional and hashable.
    """

    def decorate(
        function: Callable[Concatenate[_First, _Rest], _Result],
    ) -> Callable[Concatenate[_First, _Rest], _Result]:
        # The argument is kept too: its id can't pass to another object while it lives.
        kept: dict[tuple[Hashable, ...], tuple[_First, _Result]] = {}

        @functools.wraps(function)
        def remembering(first: _First, /, *args: _Rest.args, **kwargs: _Rest.kwargs) -> _Result:
            assert not kwargs
            key = (id(first), *args)
            found = kept.get(key)
            if found is None:
                if len(kept) >= size:
                    del kept[next(iter(kept))]
                found = kept[key] = first, function(first, *args, **kwargs)
            return found[1]

        return remembering

    return decorate
