"""What went wrong while a model was exported, in the user's terms: module and line."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from autoplan.errors import AutoplanError, CaptureError

__all__ = ["capture_error", "relative_line", "user_line"]

_TORCH = str(Path(torch.__file__).parent)
_OURS = str(Path(__file__).parent)
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
        if _is_user_file(match["file"]):
            found = relative_line(match["file"], int(match["line"]))
    return found


def capture_error(error: Exception, module: nn.Module, *, name: str) -> AutoplanError:
    """The error to show for an exception raised while ``module`` was exported."""
    if isinstance(error, AutoplanError):
        return error
    path, line = _place(error.__traceback__, module)
    where = f"{name}: {path or type(module).__name__}" + (f" at {line}" if line else "")
    kind = type(error).__name__
    text = str(error).strip().split("\n")[0][:300]
    if "DataDependent" in kind or "data-dependent" in str(error) or "Tensor.item()" in text:
        return CaptureError(
            f"{where}: control flow or a size depends on the values of a tensor",
            hint="use torch.where or another operator on whole tensors instead of a Python branch",
        )
    if isinstance(error, NotImplementedError):
        return CaptureError(
            f"{where}: an operator has no meta kernel: {text}",
            hint="register one with torch.library.register_fake",
        )
    if "meta" in text and ("device" in text or "Cannot copy out" in text):
        return CaptureError(
            f"{where}: needs the values of a tensor ({text})",
            hint="models are traced without values; keep .item(), .tolist() and devices out of "
            "forward",
        )
    return CaptureError(
        f"{where}: {kind}: {text}",
        hint="check that the model runs forward on a batch of this shape",
    )


def _is_user_file(file: str) -> bool:
    return not file.startswith((_TORCH, _OURS, "<"))


def _place(trace: TracebackType | None, module: nn.Module) -> tuple[str, str]:
    """FQN of the innermost module on the stack, and the innermost line of its code."""
    paths = {id(child): path for path, child in module.named_modules()}
    path, line = "", ""
    for frame, number in traceback.walk_tb(trace):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and paths.get(id(owner)):
            path = paths[id(owner)]
        file = frame.f_code.co_filename
        if _is_user_file(file):
            line = relative_line(file, number)
    return path, line
