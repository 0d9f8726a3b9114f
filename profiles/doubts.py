"""What is to be said about a measured profile: noise, slow spells, holes, another torch."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from autoplan.profiles.measured import NOISY, MeasuredProfile

__all__ = ["profile_notes"]


def profile_notes(profile: MeasuredProfile, path: Path) -> tuple[str, ...]:
    """Doubts about the profile in the file ``path``, each a line with what to do about it."""
    notes = [*_varying(profile, path.name)]
    if profile.out_of_memory:
        notes.append(f"{path.name}: out of memory, not timed: {', '.join(profile.out_of_memory)}")
    installed = _installed_torch()
    if installed and installed != profile.torch.split("+")[0]:
        notes.append(
            f"{path.name}: measured with torch {profile.torch}, here is {installed}; if plans run "
            f"with that one, measure again: {_again(profile, path)}"
        )
    holes = list(_holes(profile))
    if holes:
        notes.append(
            f"{path.name}: an earlier release's, times no {'; no '.join(holes)}; "
            f"measure again: {_again(profile, path)}"
        )
    return tuple(notes)


def _varying(profile: MeasuredProfile, name: str) -> Iterator[str]:
    timings = (
        *((f"matmul {t.dtype} {'x'.join(map(str, t.shape))}", t) for t in profile.matmul),
        *((f"memory {t.moved} B", t) for t in profile.copies),
        *((f"update {t.moved} B", t) for t in profile.updates),
        ("attention", profile.attention),
        *((f"{t.kind} on {t.ranks} ranks, {t.payload} B", t) for t in profile.collectives),
        *((("overlap", profile.overlap),) if profile.overlap else ()),
        *((f"recompute {t.level}", t) for t in profile.recompute),
        *((f"FSDP2 unit of {t.parameters} parameters, {t.size} B", t) for t in profile.units),
    )
    noisy = [(t.spread, what) for what, t in timings if t.spread > NOISY]
    if noisy:
        spread, what = max(noisy)
        yield (
            f"{name}: {len(noisy)} of {len(timings)} timings are noisy, most {what}: "
            f"{spread:.0%} from the 10th to the 90th percentile"
        )
    slow = [(t.pace, what) for what, t in timings if t.pace > 1.0 + NOISY]
    if slow:
        pace, what = max(slow)
        yield (
            f"{name}: {len(slow)} of {len(timings)} timings fell into a slow spell of the "
            f"machine, most {what}: a reference kernel took {pace:.2f} times its best"
        )


def _holes(profile: MeasuredProfile) -> Iterator[str]:
    """Sections that this release measures and the profile lacks, and what is done without."""
    if not profile.updates:
        yield "updates (optimizer at the rate of copies)"
    if not profile.recompute:
        yield "recompute (priced without what the host does for it)"
    if profile.ranks > 1:
        if not profile.units:
            yield "FSDP2 units (their copies priced by bytes alone)"
        if profile.overlap is None:
            yield "overlap (kernels beside collectives at a default)"


def _again(profile: MeasuredProfile, path: Path) -> str:
    """Command that measures all that the profile holds, on the machine that it is of."""
    model = " MODEL --global-batch N" if profile.operators else ""
    return (
        f"autoplan profile{model} --cluster {profile.ranks}x{profile.device.lower()} --fresh "
        f"-o {path}"
    )


def _installed_torch() -> str:
    try:
        return metadata.version("torch").split("+")[0]
    except metadata.PackageNotFoundError:
        return ""
