"""What went wrong while a model was exported, in the user's terms: module and line."""

from __future__ import annotations

import inspect
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from autoplan.errors import AutoplanError, CaptureError

__all__ = ["capture_error", "is_user_file", "place", "relative_line", "user_line"]

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
_PYTHON = sysconfig.get_path("stdlib")
# Raised by torch's tracer of control flow and function transforms.
_DYNAMO = {"TorchRuntimeError", "Unsupported", "UncapturedHigherOrderOpError", "UserError"}
_ADDRESS = re.compile(r"<?([\w.]+) object at 0x[0-9a-f]+>?")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


def relative_line(file: str, line: int) -> str:
    """``package/module.py:12`` of an installed file, ``module.py:12`` of any other."""
    for folder in ("site-packages", "dist-packages"):
        if folder in Path(file).parts:
            file = file.rpartition(f"{folder}/")[2]
            return f"{file}:{line}"
    return f"{Path(file).name}:{line}"


def user_line(node: Any) -> str:
    """Source line of an exported node: the innermost frame outside torch and this package."""
    found = ""
    for match in _FRAME.finditer(node.meta.get("stack_trace") or ""):
        if is_user_file(match["file"]):
            found = relative_line(match["file"], int(match["line"]))
    return found


def capture_error(error: BaseException, module: nn.Module, *, name: str) -> AutoplanError:
    """The error to show for an exception raised while ``module`` was exported."""
    if isinstance(error, AutoplanError):
        return error
    path, line = place(traceback.walk_tb(error.__traceback__), module)
    where = f"{name}: {path or type(module).__name__}" + (f" at {line}" if line else "")
    kind = type(error).__name__
    text = _ADDRESS.sub(r"\1", str(error).strip().split("\n")[0])[:300]
    if "DataDependent" in kind or "data-dependent" in str(error) or "Tensor.item()" in text:
        return CaptureError(
            f"{where}: control flow or a size depends on the values of a tensor",
            hint="use torch.where or another operator on whole tensors instead of a Python branch; "
            "routed experts take an adapter (autoplan.register_experts, docs/placements.md)",
        )
    if "Sparse" in text or "sparse" in text:
        return CaptureError(
            f"{where}: a sparse tensor can't be planned for",
            hint="say it with index lists (gather, scatter_add, index_add) or a dense matrix",
        )
    if "not tracked with proxy" in text or "NestedTensor" in text:
        return CaptureError(
            f"{where}: a tensor's sizes aren't fixed numbers (a nested tensor?)",
            hint="use a padded tensor and a mask",
        )
    if "fake tensor in the exported program" in text:
        return CaptureError(
            f"{name}: forward makes a tensor in a way that can't be followed"
            f"{_line_of_data(module)}",
            hint="use .detach() instead of .data, and keep autograd out of forward",
        )
    if isinstance(error, NotImplementedError) or "no fake impl" in text:
        return CaptureError(
            f"{where}: an operator has no meta kernel: {text}",
            hint="register one with torch.library.register_fake",
        )
    needs_values = "meta" in text and ("device" in text or "Cannot copy out" in text)
    if needs_values or ".numpy() is not supported" in text:
        return CaptureError(
            f"{where}: needs the values of a tensor ({text})",
            hint="models are traced without values; keep .item(), .tolist() and devices out of "
            "forward",
        )
    if kind in _DYNAMO:
        return CaptureError(
            f"{where}: control flow or a transform of functions can't be traced: {text}",
            hint="write this part with plain tensor operators, such as torch.where",
        )
    return CaptureError(
        f"{where}: {kind}: {text}",
        hint="check that the model runs forward on a batch of this shape",
    )


def is_user_file(file: str) -> bool:
    """Whether a source file is neither Python's, nor torch's, nor this package's."""
    if file.startswith(_PYTHON) and "-packages" not in file:
        return False
    return not file.startswith((_TORCH, _OURS, "<"))


def place(frames: Iterable[tuple[FrameType, int]], module: nn.Module) -> tuple[str, str]:
    """FQN of the innermost module of some frames, and the innermost line of its code.

    Frames and their line numbers come outermost first.
    """
    paths = {id(child): path for path, child in module.named_modules()}
    path, line = "", ""
    for frame, number in frames:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and paths.get(id(owner)):
            path = paths[id(owner)]
        file = frame.f_code.co_filename
        if is_user_file(file):
            line = relative_line(file, number)
    return path, line


def _line_of_data(module: nn.Module) -> str:
    """First line of the modules' own code that reads or writes ``.data``."""
    for kind in dict.fromkeys(type(child) for child in module.modules()):
        try:
            lines, first = inspect.getsourcelines(kind.forward)
            file = inspect.getsourcefile(kind) or ""
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines, first):
            if is_user_file(file) and re.search(r"\.data\b", line):
                return f" at {relative_line(file, number)}"
    return ""
