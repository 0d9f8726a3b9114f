"""``autoplan profile``: measure this machine, and the operators of a model on it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from autoplan.cli.outcome import Outcome, Progress
from autoplan.cli.planning import DTYPES, overrides, sequence_length
from autoplan.cli.writable import require_writable_place
from autoplan.errors import InputError, UsageError

if TYPE_CHECKING:
    from autoplan.profiler.targets import Target
    from autoplan.profiles.measure.run import Machine
    from autoplan.profiles.measured import MeasuredProfile, OperatorTiming

__all__ = ["run"]

_NOISY = 0.25  # relative spread beyond which a timing is told to be noisy


def run(args: argparse.Namespace) -> Outcome:
    """Measure this machine and, with a model, its operators, or a loader; write the file."""
    if args.loader is not None:
        return _loader(args)
    if args.workers is not None:
        raise UsageError("--workers is of a loader", hint="give --loader file.py:factory too")
    kind, ranks, accelerator = _device(args)
    output: Path = args.output
    _require_writable(output)
    _require_sizes(args)

    from autoplan.profiler.run import journal_path, measure_operators, read_journal
    from autoplan.profiles.measure import measure_machine, this_machine, write_profile

    _require_degrees(args.tp or (), ranks)
    machine = this_machine(ranks, kind)
    cluster = args.cluster or f"{ranks}x{machine.device.lower()}"
    if accelerator not in (None, machine.device):
        raise UsageError(
            f"--cluster {cluster}: is of {accelerator}, this machine has {machine.name} "
            f"({machine.device})",
            hint=f"write {machine.ranks}x{machine.device.lower()}",
        )
    progress = Progress(quiet=args.quiet, verbose=args.verbose > 0)
    journal = journal_path(output)
    profile = None if args.fresh else _known(output, machine)
    measured = 0
    try:
        targets = _targets(args, machine.ranks, progress) if args.model else ()
        if args.fresh:
            journal.unlink(missing_ok=True)
        if profile is None:
            profile = measure_machine(machine, progress, quick=args.quick)
            write_profile(profile, output)
        known = {timing.signature for timing in profile.operators}
        missing = [target for target in targets if target.signature not in known]
        if missing:
            begun = {timing.signature for timing in read_journal(journal, machine)}
            measured = sum(target.signature not in begun for target in missing)
            measure_operators(missing, machine, journal, progress)
            # All of the journal: another model's run may have been cut off.
            new = [t for t in read_journal(journal, machine) if t.signature not in known]
            profile = profile.model_copy(update={"operators": (*profile.operators, *new)})
            write_profile(profile, output)
            journal.unlink(missing_ok=True)
    finally:
        progress.close()
    document = profile.model_dump(mode="json")
    lines = [f"{output}: {profile.ranks} ranks of {profile.device_name}"]
    if args.model:
        lines += _operator_lines(profile, targets, measured)
    what = args.model or "MODEL"
    lines.append(
        f"next: autoplan solve {what} --cluster {cluster} --profile {output} --global-batch "
        f"{args.global_batch or 'N'}"
    )

    def render(stream: TextIO) -> None:
        stream.write("\n".join(lines) + "\n")

    return Outcome(document=document, render=render)


def _device(args: argparse.Namespace) -> tuple[str, int, str | None]:
    """Kind of device to measure, ranks, and accelerator of ``--cluster``; else every GPU."""
    if args.cluster is None:
        if args.device is None:
            raise UsageError(
                "what to measure is not said",
                hint="give --device cuda, --cluster cpu:2, or --loader file.py:factory",
            )
        if args.device == "cpu":
            raise UsageError(
                "--device cpu: how many ranks share the CPU is not said",
                hint="give --cluster cpu:2 for two",
            )
        from autoplan.profiles.measure.cuda import count_devices

        return "cuda", count_devices(), None
    from autoplan.profiles.cluster import load_cluster

    cluster = load_cluster(args.cluster)
    if cluster.nodes > 1:
        raise UsageError(
            f"--cluster {args.cluster}: has {cluster.nodes} nodes, and one machine is measured",
            hint="leave the nodes out; between them the catalogue's network counts",
        )
    kind = "cpu" if cluster.accelerator.name == "cpu" else "cuda"
    if args.device not in (None, kind):
        raise UsageError(
            f"--device {args.device}: --cluster {args.cluster} is of {cluster.accelerator.name}",
            hint=f"leave --device out, or --cluster: --device {kind} goes with it",
        )
    return kind, cluster.ranks_per_node, cluster.accelerator.name


def _loader(args: argparse.Namespace) -> Outcome:
    if args.model:
        raise UsageError("--loader measures a loader alone", hint=f"leave {args.model} out")
    if args.device:
        raise UsageError("--loader runs on the CPU alone", hint="leave --device out")
    output: Path = args.output
    _require_writable(output)

    from autoplan.profiles.measure.loader import measure_loader
    from autoplan.profiles.schema import write_record

    file = measure_loader(args.loader, workers=args.workers, duration=1.0 if args.quick else 3.0)
    write_record(file, output)

    def render(stream: TextIO) -> None:
        stream.write(
            f"{output}: {file.rate:.4g} samples/s with {file.workers} workers "
            f"({file.samples} samples, nothing else at work)\n"
            f"next: autoplan solve MODEL --cluster SPEC --global-batch N --loader-rate {output}\n"
        )

    return Outcome(document=file.model_dump(mode="json"), render=render)


def _operator_lines(
    profile: MeasuredProfile, targets: tuple[Target, ...], measured: int
) -> list[str]:
    wanted = {target.signature for target in targets}
    timings = [timing for timing in profile.operators if timing.signature in wanted]
    failed = [timing for timing in timings if timing.failure]
    lines = [f"operators: {len(timings)} of the model's {len(wanted)}, {measured} measured now"]
    lines += [f"not timed: {t.signature[:70]}: {t.failure}" for t in failed[:5]]
    if len(failed) > 5:
        lines.append(f"not timed: {len(failed) - 5} more")
    share, noisy = _noisy_share([timing for timing in timings if not timing.failure])
    if noisy:
        lines.append(
            f"noisy: {len(noisy)} operators with {share:.0%} of the time vary by more than "
            f"{_NOISY:.0%} (10th to 90th percentile), most {noisy[0].signature[:60]} "
            f"({noisy[0].spread:.0%}); a quiet machine and --fresh help"
        )
    return lines


def _noisy_share(timings: list[OperatorTiming]) -> tuple[float, list[OperatorTiming]]:
    total = sum(t.forward + t.backward for t in timings)
    noisy = [t for t in timings if t.spread > _NOISY]
    noisy.sort(key=lambda t: t.spread * (t.forward + t.backward), reverse=True)
    return sum(t.forward + t.backward for t in noisy) / max(total, 1e-12), noisy


def _known(output: Path, machine: Machine) -> MeasuredProfile | None:
    """Profile that the output file holds already; refused when it is another machine's."""
    if not output.exists():
        return None
    from autoplan.profiles.measured import load_profile

    try:
        profile = load_profile(output)
    except InputError as error:
        raise InputError(
            str(error), hint="measure again with --fresh, or name another file"
        ) from error
    other = machine.measured(profile)
    if other:
        raise UsageError(
            f"-o {output}: holds a profile of something else ({other})",
            hint="name another file, or replace this one with --fresh",
        )
    return profile


def _targets(args: argparse.Namespace, ranks: int, progress: Progress) -> tuple[Target, ...]:
    from autoplan.capture import capture, load_model
    from autoplan.profiler.targets import find_targets

    source = load_model(
        args.model, overrides=overrides(args.set), trust_remote_code=args.trust_remote_code
    )
    seq_len = sequence_length(source, args.seq_len)
    captured = capture(
        source, seq_len=seq_len, dtype=DTYPES[args.dtype or "fp32"], progress=progress
    )
    captured.confirm()
    sizes = args.micro_batch_size or _divisors(args.global_batch)
    degrees = args.tp or _divisors(ranks)
    return find_targets([captured.at(size) for size in sizes], degrees)


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, number + 1) if number % n == 0)


def _require_sizes(args: argparse.Namespace) -> None:
    if args.model and not (args.global_batch or args.micro_batch_size):
        raise UsageError(
            "which microbatch sizes of the model should be measured is not said",
            hint="give --global-batch N as for solve, or --micro-batch-size N,...",
        )
    if not args.model:
        for name in ("global_batch", "micro_batch_size", "tp", "seq_len", "dtype", "set"):
            if getattr(args, name):
                flag = "--" + name.replace("_", "-")
                raise UsageError(f"{flag} is of a model, and none is given")
    if args.global_batch and args.micro_batch_size:
        odd = [n for n in args.micro_batch_size if args.global_batch % n]
        if odd:
            raise UsageError(
                f"--micro-batch-size {odd[0]} does not divide the global batch {args.global_batch}"
            )


def _require_degrees(degrees: Sequence[int], ranks: int) -> None:
    odd = [n for n in degrees if ranks % n]
    if odd:
        raise UsageError(
            f"--tp {odd[0]} does not divide the {ranks} ranks of --cluster",
            hint=f"one of: {', '.join(map(str, _divisors(ranks)))}",
        )


def _require_writable(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"-o {path}: is a folder", hint=f"name a file: -o {path / 'cpu.json'}")
    require_writable_place(path, hint="name another place")
