"""The training loop behind a generated ``train.py``."""

from __future__ import annotations

import argparse
import math
import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from .cores import share_cores
from .data import BatchInput, TokenFile, batch, batch_inputs, token_input
from .environment import Environment, check_environment
from .failure import InvalidFile, InvalidOption, ProgramError, TrainingDiverged
from .log import StepLog, peak_memory
from .mesh import build_mesh
from .optimizer import learning_rate
from .parameters import ParameterSpec
from .planfile import ProgramPlan, read_plan
from .step import Program, Trainer

__all__ = ["main", "read_weights"]


def main(program: Program, folder: Path, argv: Sequence[str] | None = None) -> int:
    """Exit code of a training run of the program in ``folder``.

    Errors are one line and a hint on stderr, from rank 0. Codes: 2 wrong option, 6 unreadable
    file, 7 another cluster than the plan's, 1 anything else, a loss that is no number included.
    """
    try:
        options = _parse(argv)
        plan = read_plan(folder / "plan.json")
        if options.check:
            _check(plan, options)
            return 0
        environment = check_environment(plan)
        _train(program, plan, environment, options)
    except ProgramError as error:
        if os.environ.get("RANK", "0") == "0":
            print(f"error: {error}", file=sys.stderr)
            if error.hint:
                print(f"hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    return 0


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line from one rank, as all others."""

    def error(self, message: str) -> NoReturn:
        raise InvalidOption(message, hint="python train.py --help")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(description="Train the model of plan.json as planned.")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps (default 10)")
    parser.add_argument("--data", type=Path, help="raw tokens, uint16 or (.u32) uint32")
    parser.add_argument(
        "--weights", type=Path, help="state dict to start from, .pt or .safetensors"
    )
    parser.add_argument("--save", type=Path, help="write the final state dict (.pt)")
    parser.add_argument("--lr", type=float, default=3e-4, help="peak learning rate (default 3e-4)")
    parser.add_argument("--warmup", type=int, default=0, help="steps of linear warmup (default 0)")
    parser.add_argument("--weight-decay", type=float, default=0.1, help="of matrices (default 0.1)")
    parser.add_argument("--clip", type=float, default=1.0, help="gradient norm, 0: off (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data and dropout")
    parser.add_argument("--log-file", type=Path, help="JSONL, one record a step")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="run blocks under torch.compile (default: as the plan is priced)",
    )
    parser.add_argument("--check", action="store_true", help="check plan, node and options only")
    options = parser.parse_args(argv)
    for name, least in (("steps", 1), ("warmup", 0), ("lr", 0.0), ("clip", 0.0), ("seed", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}")
    for path in (options.save, options.log_file):
        if path is not None and not path.absolute().parent.is_dir():
            raise InvalidFile(f"cannot write {path}: {path.parent} is no folder")
    return options


def _check(plan: ProgramPlan, options: argparse.Namespace) -> None:
    """Whether a node can run its ranks of the plan, asked before they are launched.

    torchrun ends with 1 whatever its ranks end with, so a launcher that wants the documented
    code runs this first.
    """
    last = min(plan.ranks, plan.ranks_per_node) - 1
    launched = {"RANK": "0", "LOCAL_RANK": str(last), "WORLD_SIZE": str(plan.ranks)}
    check_environment(plan, {**os.environ, **launched})
    if options.data:
        _open_tokens(batch_inputs(plan), options.data)
    if options.weights and not options.weights.is_file():
        raise InvalidFile(f"{options.weights} is no file")


def _train(
    program: Program, plan: ProgramPlan, environment: Environment, options: argparse.Namespace
) -> None:
    device = environment.device
    inputs = batch_inputs(plan)
    tokens = _open_tokens(inputs, options.data) if options.data else None
    weights = read_weights(options.weights, plan) if options.weights else None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        share_cores(environment.local_rank, min(plan.ranks, plan.ranks_per_node))
    if environment.ranks > 1:
        dist.init_process_group(
            environment.backend, device_id=device if device.type == "cuda" else None
        )
    axes = build_mesh(plan, device)
    trainer = Trainer(
        program,
        plan,
        axes,
        device,
        seed=options.seed,
        rate=options.lr,
        weight_decay=options.weight_decay,
        values=weights,
        compiled=plan.compile if options.compile is None else options.compile,
    )
    log = StepLog(plan, sys.stdout, options.log_file) if environment.rank == 0 else None
    for step in range(options.steps):
        share = batch(
            inputs, plan, step=step, dp_rank=axes.dp.rank, seed=options.seed, tokens=tokens
        )
        share = {name: value.to(device) for name, value in share.items()}
        rate = learning_rate(step, peak=options.lr, warmup=options.warmup, steps=options.steps)
        started = time.perf_counter()
        result = trainer.step(share, rate=rate, max_norm=options.clip)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - started
        if log is not None:
            log.step(step + 1, result, seconds, rate, peak_memory(device))
        if not math.isfinite(result.loss):
            raise TrainingDiverged(
                f"the loss is {result.loss} at step {step + 1}", hint="try a lower --lr or --warmup"
            )
    if log is not None:
        log.summary()
    if options.save:
        _save(trainer, options.save, environment)


def _open_tokens(inputs: tuple[BatchInput, ...], path: Path) -> TokenFile:
    item = token_input(inputs)
    if item is None or item.bound is None:
        raise InvalidOption("this model has no token input, so --data has nothing to feed")
    return TokenFile(path, window=item.shape[0], bound=item.bound)


def read_weights(path: Path, plan: ProgramPlan) -> Callable[[str, ParameterSpec], Tensor]:
    """Function to a parameter's whole value from a state dict of the original model.

    ``.safetensors`` needs the package of that name; anything else is read by ``torch.load``
    with ``weights_only``, so a file can't run code.
    """
    aliases = {p["fqn"]: (p["fqn"], *p["aliases"]) for p in plan.graph["parameters"]}
    state = _read_state(path)
    missing = [fqn for fqn, names in aliases.items() if not any(n in state for n in names)]
    if missing:
        raise InvalidFile(
            f"{path} lacks {len(missing)} of {len(aliases)} parameters, first {missing[0]}",
            hint="the names must be those of the model's own state dict",
        )

    def value(fqn: str, spec: ParameterSpec) -> Tensor:
        tensor = next(state[name] for name in aliases[fqn] if name in state)
        if tuple(tensor.shape) != spec.shape:
            raise InvalidFile(
                f"{fqn} has shape {tuple(tensor.shape)} in {path}, the plan has {spec.shape}"
            )
        return tensor

    return value


def _read_state(path: Path) -> Mapping[str, Tensor]:
    if not path.is_file():
        raise InvalidFile(f"cannot read {path}: no such file")
    if path.suffix == ".safetensors":
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError as error:
            raise InvalidOption(
                "reading .safetensors needs the package safetensors",
                hint="pip install safetensors, or save the weights with torch.save",
            ) from error
        try:
            loaded: Mapping[str, Tensor] = load_file(path)
        except (OSError, SafetensorError) as error:
            raise InvalidFile(f"{path} is no state dict: {error}") from error
        return loaded
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.PickleError) as error:
        raise InvalidFile(f"{path} is no state dict: {str(error).splitlines()[0]}") from error
    if not isinstance(state, Mapping):
        raise InvalidFile(f"{path} holds {type(state).__name__}, not a state dict")
    return state


def _save(trainer: Trainer, path: Path, environment: Environment) -> None:
    """Write the whole state dict from rank 0, stage by stage."""
    state = trainer.whole_parameters()
    if environment.ranks > 1:
        parts: list[dict[str, Tensor] | None] = [None] * environment.ranks
        leader = trainer.axes.dp.rank == 0 and trainer.axes.tp.rank == 0
        dist.gather_object(state if leader else {}, parts if environment.rank == 0 else None, dst=0)
        if environment.rank == 0:
            state = {fqn: value for part in parts if part for fqn, value in part.items()}
    if environment.rank == 0:
        torch.save(state, path)
