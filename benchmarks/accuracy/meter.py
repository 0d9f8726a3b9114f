"""Bytes of live CPU tensors while something runs, as torch's allocator hands them out.

Independent of any plan: torch allows a CPU allocator of one's own (``c10::SetCPUAllocator``), and
the one of ``allocator.cpp`` counts every block that begins or ends, in whatever thread: those of
autograd and of gloo included. Only torch is imported, so this runs beside a generated program.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["Meter", "build"]

_SOURCE = Path(__file__).with_name("allocator.cpp")
_TORCH = Path(torch.__file__).parent


def build(folder: Path) -> Path:
    """Compile the counting allocator into ``folder``; needs a C++ compiler (``CXX`` or c++)."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise RuntimeError("measuring tensor bytes needs a C++ compiler: install g++, or set CXX")
    library = folder / "allocator.so"
    done = subprocess.run(
        [
            *(compiler, "-std=c++20", "-O1", "-shared", "-fPIC"),
            f"-I{_TORCH / 'include'}",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            *(str(_SOURCE), "-o", str(library)),
            *(f"-L{_TORCH / 'lib'}", "-lc10"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{compiler} can't compile {_SOURCE.name}: {done.stderr.strip()}")
    return library


class Meter:
    """Context in which allocations are counted; enter it before the first tensor exists.

    Tensors that are older are not counted, nor is their end. ``library`` is what `build` made,
    once for many processes.

    >>> with Meter() as meter:
    ...     kept = torch.empty(250)
    ...     meter.span(lambda: torch.empty(1000).fill_(1))
    >>> meter.peaks
    [5000]
    """

    def __init__(self, library: Path | None = None) -> None:
        self.peaks: list[int] = []
        """Largest sum of bytes of live tensors within each span, in their order."""
        if library is None:
            with tempfile.TemporaryDirectory() as folder:
                self._library: Any = ctypes.CDLL(str(build(Path(folder))))
        else:
            self._library = ctypes.CDLL(str(library))
        self._library.meter_before.restype = ctypes.c_void_p
        self._library.meter_remove.argtypes = [ctypes.c_void_p]
        for name in ("meter_live", "meter_peak"):
            getattr(self._library, name).restype = ctypes.c_int64

    def __enter__(self) -> Meter:
        self._before = self._library.meter_before()
        self._library.meter_install()
        return self

    def __exit__(self, *_: object) -> None:
        self._library.meter_remove(self._before)

    def span(self, work: Callable[[], object]) -> None:
        """Run ``work``; its peak is one of ``peaks``."""
        self._library.meter_begin()
        work()
        self.peaks.append(self._library.meter_peak())

    def live(self) -> int:
        """Bytes of the tensors that live now."""
        found: int = self._library.meter_live()
        return found
