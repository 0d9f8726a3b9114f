"""Update rules as the cost model sees them: bytes of state, bytes streamed, temporaries.

`runtime.optimizer` and `runtime.moments` run them. Moments of 8 bits are blocks of
`MOMENT_BLOCK` elements with one float32 scale each (Dettmers et al., arXiv 2110.02861).
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MOMENT_BLOCK", "UPDATE_CHUNK", "UPDATE_RULES", "UpdateRule", "update_rule"]

MOMENT_BLOCK = 256
UPDATE_CHUNK = 2**22
"""Elements that the runtime's own Adam updates at once."""

_OWN_TEMPORARIES = 32
"""Bytes an element of a chunk: gradient, two moments, update, and what quantizing them takes."""


_OWN_PASSES = 108.0
"""Bytes an element that the runtime's own Adam moves besides its moments, operator by operator."""

_MOMENT_PASSES = {32: 16.0, 16: 12.0, 8: 104.0}
"""Bytes an element to load and store one moment: 8 bits are looked up, scaled and spread."""

_ROUNDING_PASSES = 200.0
"""Bytes an element to widen a gradient and parameter and round the latter by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRule:
    """An optimizer: ``moments`` tensors of state of ``moment_bits`` each.

    ``master``: parameters of fewer bits have a float32 copy that is updated in their place.
    """

    name: str
    moments: int
    moment_bits: int = 32
    master: bool = True

    @property
    def is_adam(self) -> bool:
        """Whether it is some AdamW, which can round without masters."""
        return self.moments == 2

    @property
    def is_own(self) -> bool:
        """Whether the runtime's own code updates, by chunks, rather than torch's optimizer."""
        return self.is_adam and (self.moment_bits < 32 or not self.master)

    def moment_bytes(self, numel: int) -> int:
        """Bytes of the moments of ``numel`` elements."""
        each = numel * self.moment_bits // 8
        if self.moment_bits == 8:
            each += 4 * -(-numel // MOMENT_BLOCK)
        return self.moments * each

    def master_bytes(self, numel: int, itemsize: int) -> int:
        """Bytes of the float32 copies of parameters of ``itemsize`` bytes."""
        return 4 * numel if self.master and itemsize < 4 else 0

    def streamed_bytes(self, numel: float, itemsize: int, *, cast: bool) -> float:
        """Bytes read and written to update ``numel`` elements.

        Torch's optimizers read and write each moment and the parameter and read the gradient.
        The runtime's own runs one operator after the other, so each counts with what it moves.
        ``cast``: the parameters are kept in the compute dtype of ``itemsize`` bytes, as a copy
        or, without masters, as what is updated.
        """
        copied = itemsize + 4 if cast and self.master and itemsize < 4 else 0
        if not self.is_own:
            return numel * (12 + 2 * self.moments * self.moment_bits / 8 + copied)
        passes = _OWN_PASSES + self.moments * _MOMENT_PASSES[self.moment_bits]
        if not self.master:
            passes += _ROUNDING_PASSES
        return numel * (passes + copied)

    def temporary_bytes(self, numel: int) -> int:
        """Bytes while ``numel`` elements are updated: torch's fused passes need none."""
        if self.is_own:
            return min(numel, UPDATE_CHUNK) * _OWN_TEMPORARIES
        return 0


UPDATE_RULES = {
    rule.name: rule
    for rule in (
        UpdateRule(name="sgd", moments=0),
        UpdateRule(name="sgd-momentum", moments=1),
        UpdateRule(name="adamw", moments=2),
        UpdateRule(name="adamw-bf16", moments=2, moment_bits=16),
        UpdateRule(name="adamw-8bit", moments=2, moment_bits=8),
    )
}


def update_rule(name: str, *, master: bool = True) -> UpdateRule:
    """Rule of that name, with or without float32 masters."""
    rule = UPDATE_RULES[name]
    return UpdateRule(name=name, moments=rule.moments, moment_bits=rule.moment_bits, master=master)
