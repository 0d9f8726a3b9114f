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
        rows = [row for row in model.rows if not row.bound and row.sense is not Sense.AT_MOST]
        self._rows = len(rows)
        self._one_way = np.array([row.sense is Sense.AT_LEAST for row in rows], dtype=bool)
        entries = [
            (index, variable, coefficient > 0)
            for index, row in enumerate(rows)
            for variable, coefficient in zip(row.variables, row.coefficients, strict=True)
        ]
        row, variable, positive = np.array(entries, dtype=np.intp).reshape(-1, 3).T
        above = positive.astype(bool)
        self._plus = row[above], variable[above]
        self._minus = row[~above], variable[~above]

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
