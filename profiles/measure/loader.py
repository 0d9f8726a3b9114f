"""Samples/s of a user's DataLoader on this machine, with nothing that consumes them."""

from __future__ import annotations

import datetime
import importlib.util
import inspect
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from autoplan.errors import InputError, UsageError
from autoplan.profiles.loader import LoaderFile

__all__ = ["measure_loader"]


def measure_loader(spec: str, *, workers: int | None = None, duration: float = 3.0) -> LoaderFile:
    """Rate of the loader that ``file.py:factory`` makes, over ``duration`` seconds or more.

    ``workers`` goes to the factory as ``num_workers``. Batches that are prefetched while the
    workers start aren't counted; the start of a further epoch is.
    """
    factory = _factory(spec)
    arguments = {}
    if workers is not None:
        if "num_workers" not in inspect.signature(factory).parameters:
            raise UsageError(
                f"{spec}: the factory has no parameter num_workers, so --workers can't reach it",
                hint="write def factory(num_workers=0): ..., or leave --workers out",
            )
        arguments["num_workers"] = workers
    loader = _call(lambda: factory(**arguments), spec)
    if not isinstance(loader, DataLoader):
        raise InputError(
            f"{spec}: returns {type(loader).__name__}, not a torch.utils.data.DataLoader"
        )
    samples, seconds = _call(lambda: _rate(loader, duration, spec), spec)
    return LoaderFile.model_validate(
        {
            "loader": spec,
            "rate": f"{samples / seconds!r} samples/s",
            "workers": loader.num_workers,
            "samples": samples,
            "torch": torch.__version__,
            "date": datetime.date.today().isoformat(),
        }
    )


def _rate(loader: DataLoader[Any], duration: float, spec: str) -> tuple[int, float]:
    epochs = chain.from_iterable(iter(each) for each in repeat(loader))
    ahead = 1 + loader.num_workers * (loader.prefetch_factor or 0)
    first = next(iter(loader), None)
    if first is None:
        raise InputError(f"{spec}: the loader gives no batch")
    _size(first, spec)
    for _ in islice(epochs, ahead):
        pass
    samples = 0
    started = time.perf_counter()
    for batch in epochs:
        samples += _size(batch, spec)
        if time.perf_counter() - started >= duration:
            break
    return samples, time.perf_counter() - started


def _size(batch: object, spec: str) -> int:
    """Samples of a batch: the first dim of its first tensor."""
    pending = [batch]
    while pending:
        item = pending.pop(0)
        if isinstance(item, torch.Tensor) and item.dim() and item.shape[0]:
            return item.shape[0]
        if isinstance(item, Mapping):
            pending += item.values()
        elif isinstance(item, Sequence) and not isinstance(item, str):
            pending += item
    raise InputError(f"{spec}: a batch has no tensor whose first dim would count its samples")


def _factory(spec: str) -> Callable[..., Any]:
    match = re.fullmatch(r"(.+\.py):(\w+)", spec)
    if match is None or not Path(match[1]).is_file():
        raise UsageError(f"--loader {spec}: no such file", hint="write file.py:factory")
    path = Path(match[1]).resolve()
    # Worker processes that are spawned import the module again, by this name.
    sys.path.insert(0, str(path.parent))
    module_spec = importlib.util.spec_from_file_location(path.stem, path)
    assert module_spec is not None and module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[path.stem] = module
    execute = module_spec.loader.exec_module
    _call(lambda: execute(module), spec)
    factory = getattr(module, match[2], None)
    if not callable(factory):
        raise UsageError(f"{path.name} has no function {match[2]}", hint="write file.py:factory")
    return factory  # type: ignore[no-any-return]


def _call(function: Callable[[], Any], spec: str) -> Any:
    """Result of the user's code; what it raises becomes one line."""
    try:
        return function()
    except (InputError, UsageError, KeyboardInterrupt):
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        raise InputError(
            f"{spec}: the loader fails with {what}", hint="run the file alone"
        ) from error
