"""From the name of a model to its source."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from autoplan.capture.hf import huggingface_source, read_config
from autoplan.capture.python_file import python_file_source
from autoplan.capture.source import ModelSource
from autoplan.errors import InputError, UsageError
from autoplan.ir.fields import Json
from autoplan.ir.names import near_matches
from autoplan.ir.plan import ModelRecord

__all__ = ["list_models", "load_model", "model_from_record"]

_FOLDER = Path(__file__).parent
_NANOGPT = "nanogpt"
_FILE = re.compile(r"^(?P<path>.+\.py)(?::(?P<factory>\w+))?$")


def list_models() -> tuple[str, ...]:
    """Names of the built-in models."""
    files = (_FOLDER / "architectures").glob("*.json")
    return tuple(sorted([*(file.stem for file in files), _NANOGPT]))


def load_model(
    spec: str,
    *,
    overrides: Mapping[str, Json] | None = None,
    trust_remote_code: bool = False,
) -> ModelSource:
    """Source of a built-in name, ``file.py:factory``, or a Hugging Face configuration.

    A configuration is named by its ``config.json`` or the directory that holds it.
    ``overrides`` replace its values, or are the factory's arguments.
    """
    settings = dict(overrides or {})
    if spec == _NANOGPT:
        return _nanogpt(settings)
    if spec in list_models():
        config = read_config(_FOLDER / "architectures" / f"{spec}.json")
        return huggingface_source(
            name=spec, spec=spec, form="builtin", config=config, overrides=settings
        )
    file = _FILE.match(spec)
    if file is not None:
        path = Path(file["path"])
        return python_file_source(
            path,
            file["factory"] or "",
            name=path.stem,
            spec=f"{path.resolve()}:{file['factory']}" if file["factory"] else spec,
            form="file",
            overrides=settings,
        )
    path = Path(spec)
    if path.suffix == ".json" or path.is_dir():
        folder = path if path.is_dir() else path.parent
        return huggingface_source(
            name=_configuration_name(path),
            spec=str(path.resolve()),
            form="hf",
            config=read_config(path),
            overrides=settings,
            trust_remote_code=trust_remote_code,
            directory=str(folder),
        )
    if path.is_file():
        raise InputError(
            f"{spec} is no model",
            hint="give a Python file as file.py:factory, or a Hugging Face config.json",
        )
    raise UsageError(
        f"unknown model {spec!r}",
        hint=f"{near_matches(spec, list_models(), what='models', most=99)}; a path to a "
        "config.json or file.py:factory works too",
    )


def model_from_record(record: ModelRecord, *, trust_remote_code: bool = False) -> ModelSource:
    """Source that a plan was made from; its file, if any, must be unchanged."""
    if record.form == "file":
        # Before anything of the file runs: a plan may only name the file it was made from.
        file = _FILE.match(record.spec)
        path = Path(file["path"]) if file else Path(record.spec)
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise InputError(
                f"{path}, which the plan was made from, can't be read: {error.strerror}",
                hint="put the file back there, or solve again where it is now",
            ) from error
        if digest != record.file_digest:
            raise InputError(
                f"{record.spec} has changed since the plan was made",
                hint="solve again, or restore the file",
            )
        return load_model(record.spec, overrides=record.overrides)
    if record.spec == _NANOGPT:
        return _nanogpt(record.overrides)
    source = huggingface_source(
        name=record.spec if record.form == "builtin" else _configuration_name(Path(record.spec)),
        spec=record.spec,
        form=record.form,
        config=record.config,
        overrides=record.overrides,
        trust_remote_code=trust_remote_code,
        directory=str(Path(record.spec).parent),
    )
    return source


def _configuration_name(path: Path) -> str:
    """A file's own name, except ``config.json``, which is known by its folder."""
    if path.suffix == ".json" and path.name != "config.json":
        return path.stem
    return (path.parent if path.suffix == ".json" else path).resolve().name


def _nanogpt(overrides: Mapping[str, Json]) -> ModelSource:
    return python_file_source(
        _FOLDER / "nanogpt.py",
        _NANOGPT,
        name=_NANOGPT,
        spec=_NANOGPT,
        form="builtin",
        overrides=overrides,
    )
