"""Variables of a 0-1 program that can be 1 in some solution, when some are known to be 0."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoplan.solver.linear import LpModel, Sense

__all__ = ["Support"]

_Flags = npt.NDArray[np.bool_]
_Indices = npt.NDArray[np.intp]


class Support:
    """The rows of a program without a right-hand side, as implications between variables.

    In ``sum plus - sum minus = 0`` one side is 0 when the other is; in ``>= 0`` the minus side is
    when the plus side is.
    """

    def __init__(self, model: LpModel) -> None:
        self._rows = len(model.bounds)
        senses = np.array([sense.value for sense in model.senses])
        self._one_way = senses == Sense.AT_LEAST.value
        usable = (np.array(model.bounds) == 0.0) & (senses != Sense.AT_MOST.value)
        row = np.repeat(np.arange(self._rows), np.diff(model.starts))
        variable = np.array(model.variables, dtype=np.intp)
        above = np.array(model.coefficients) > 0
        plus, minus = above & usable[row], ~above & usable[row]
        self._plus = row[plus], variable[plus]
        self._minus = row[minus], variable[minus]

    def reachable(self, allowed: _Flags) -> _Flags:
        """Those of the allowed variables that the rows let be 1."""
        allowed = allowed.copy()
        count = -1
        while count != (count := int(np.count_nonzero(allowed))):
            self._close(allowed, self._minus, self._is_empty(allowed, self._plus))
            blocked = self._is_empty(allowed, self._minus) & ~self._one_way
            self._close(allowed, self._plus, blocked)
        return allowed

    def _is_empty(self, allowed: _Flags, side: tuple[_Indices, _Indices]) -> _Flags:
        row, variable = side
        open_entries = np.bincount(row[allowed[variable]], minlength=self._rows)
        return np.equal(open_entries, 0)

    def _close(self, allowed: _Flags, side: tuple[_Indices, _Indices], blocked: _Flags) -> None:
        row, variable = side
        allowed[variable[blocked[row]]] = False
