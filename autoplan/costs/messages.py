"""Bytes of messages that a pipeline stage still holds when it is done with them.

By the sources of torch 2.13's ``pipelining/schedules.py``:

* Until it makes the next one, 1F1B has the list of messages in which the last backward's gradient
  goes back, also while units are reduced at the end of the step; GPipe likewise.
* A handle of gloo's holds what it sends. During its warm-up 1F1B waits for each send before the
  next, so the handle of the last but one is there until the last forward has ended. GPipe has those
  of all sends.

With all microbatches in flight a stage of 1F1B counts as one of GPipe, which holds no less.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SentMessages"]


@dataclass(frozen=True, slots=True)
class SentMessages:
    """Bytes that a microbatch's ``forward`` and ``backward`` send to the stages beside it.

    ``host`` is as in `MemorySettings`.
    """

    forward: int
    backward: int
    host: bool

    def later_backwards(self, in_flight: int, microbatches: int) -> list[tuple[int, int]]:
        """Backwards after the first: microbatches held, and bytes of messages left.

        Only those that may hold most: the last of a steady state, and the one after it.
        """
        found = []
        steady = microbatches - in_flight
        if steady > 0:
            # The handle's microbatch is in flight itself until its own backward has ended.
            warm = self.host and in_flight > 1 and steady >= in_flight - 1
            found.append((in_flight, self.backward + (self.forward if warm else 0)))
        if in_flight > 1:
            handles = self.forward if self.host and steady == 0 else 0
            found.append((in_flight - 1, self.backward + handles))
        return found

    def at_the_end(self, in_flight: int, microbatches: int) -> int:
        """Bytes left after the last backward."""
        if self.host and in_flight == microbatches:
            return microbatches * (self.forward + self.backward)
        return self.backward
