"""Which sizes are measured, on a CPU and on an accelerator."""

from __future__ import annotations

from dataclasses import dataclass

from autoplan.profiles.measure.units import UnitSize

__all__ = ["SIZES", "KiB", "MiB", "Sizes"]

KiB, MiB = 2**10, 2**20

_HOST_WORK = 0.01, 512, 1024
_DEVICE_WORK = 0.004, 4096, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of everything that is measured, and seconds of repeats for each.

    ``attention`` is heads, size of a head and sequence; ``work`` seconds, rows and width of what a
    rank does between two collectives, some operators of a small block.
    """

    budget: float
    matmul: tuple[int, ...]
    copies: tuple[int, ...]
    payloads: tuple[int, ...]
    attention: tuple[int, int, int]
    reference: int
    overlap: int
    units: tuple[UnitSize, ...]
    work: tuple[float, int, int]


SIZES = {
    "cpu": {
        "tiny": Sizes(
            budget=0.02,
            matmul=(32, 64, 128),
            copies=(64 * KiB, MiB),
            payloads=(4 * KiB, 64 * KiB),
            attention=(12, 64, 64),
            reference=128,
            overlap=256 * KiB,
            units=((1, 2**12), (4, 2**12), (1, 2**16)),
            work=_HOST_WORK,
        ),
        "quick": Sizes(
            budget=0.25,
            matmul=(64, 128, 256, 512, 1024),
            copies=(64 * KiB, 512 * KiB, 4 * MiB, 32 * MiB),
            payloads=(4 * KiB, 64 * KiB, MiB, 8 * MiB, 64 * MiB),
            attention=(12, 64, 512),
            reference=256,
            overlap=8 * MiB,
            units=((1, 2**14), (16, 2**14), (1, 2**20), (16, 2**20)),
            work=_HOST_WORK,
        ),
        "full": Sizes(
            budget=0.35,
            matmul=(32, 64, 128, 256, 512, 1024, 2048),
            copies=(16 * KiB, 64 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB),
            payloads=(4 * KiB, 32 * KiB, 256 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB),
            attention=(12, 64, 512),
            reference=256,
            overlap=8 * MiB,
            units=tuple((k, n) for k in (1, 8, 24) for n in (2**14, 2**18, 2**20, 2**22)),
            work=_HOST_WORK,
        ),
    },
    "cuda": {
        "quick": Sizes(
            budget=0.1,
            matmul=(512, 1024, 2048, 4096),
            copies=(MiB, 8 * MiB, 64 * MiB, 512 * MiB),
            payloads=(64 * KiB, MiB, 16 * MiB, 256 * MiB),
            attention=(32, 128, 2048),
            reference=4096,
            overlap=256 * MiB,
            units=((1, 2**18), (16, 2**18), (1, 2**25), (16, 2**25)),
            work=_DEVICE_WORK,
        ),
        "full": Sizes(
            budget=0.25,
            matmul=(256, 512, 1024, 2048, 4096, 8192),
            copies=(64 * KiB, 512 * KiB, 4 * MiB, 32 * MiB, 256 * MiB, 1024 * MiB),
            payloads=(4 * KiB, 64 * KiB, MiB, 4 * MiB, 16 * MiB, 64 * MiB, 256 * MiB, 1024 * MiB),
            attention=(32, 128, 4096),
            reference=4096,
            overlap=256 * MiB,
            units=tuple((k, n) for k in (1, 8, 24) for n in (2**18, 2**22, 2**25)),
            work=_DEVICE_WORK,
        ),
    },
}
