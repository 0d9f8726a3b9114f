"""Reading a plan file, with errors that point at the place that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from autoplan.errors import InputError
from autoplan.ir.plan import Plan

__all__ = ["SCHEMA_VERSION", "plan_path", "read_plan"]

SCHEMA_VERSION = 2


def plan_path(path: Path) -> Path:
    """Path of the plan file: ``path`` itself, or ``plan.json`` in that folder."""
    return path / "plan.json" if path.is_dir() else path


def read_plan(path: Path) -> Plan:
    """Plan in the file or program folder ``path``; `InputError` says where it is broken."""
    path = plan_path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such plan", hint="name a plan.json, or the folder that solve -o wrote"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: can't be read: {error}", hint="is it a plan file?") from None
    try:
        data = json.loads(text)
    except ValueError as error:
        where = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        what = getattr(error, "msg", str(error))
        raise InputError(
            f"{path}{where}: not valid JSON ({what}); the file has {len(text)} characters",
            hint="the file may be truncated: write it again with autoplan solve ... -o DIR",
        ) from None
    except RecursionError:
        raise InputError(
            f"{path}: nested too deeply to be a plan", hint="is it a plan file?"
        ) from None
    if _version(path, data) == 1:
        text = json.dumps(_with_level_by_class(data))
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "top level"
        more = error.error_count() - 1
        raise InputError(
            f"{path}: {place}: {first['msg']}" + (f" (and {more} more)" if more else ""),
            hint="the file was changed or damaged: write it again with autoplan solve ... -o DIR",
            details={"field": place, "errors": error.error_count()},
        ) from None


def _version(path: Path, data: object) -> int:
    """Schema version of the file, which is one that can be read."""
    if not isinstance(data, dict) or "schema_version" not in data:
        raise InputError(
            f"{path}: no schema_version, so not a plan file",
            hint="name a plan.json, or the folder that solve -o wrote",
        )
    version = data["schema_version"]
    if version not in (1, SCHEMA_VERSION) or isinstance(version, bool):
        raise InputError(
            f"{path}: plan schema version {version!r}; this autoplan reads {SCHEMA_VERSION}, and 1",
            hint="use the autoplan that wrote it, or solve again",
        )
    return int(version)


def _with_level_by_class(data: dict[str, object]) -> dict[str, object]:
    """A plan of version 1, in which all blocks have the plan's recompute level, as version 2."""
    level, graph = data.get("recompute"), data.get("graph")
    if isinstance(graph, dict) and isinstance(classes := graph.get("classes"), list):
        levelled = [c | {"recompute": level} if isinstance(c, dict) else c for c in classes]
        graph = graph | {"classes": levelled}
    return data | {"schema_version": SCHEMA_VERSION, "graph": graph}
