"""Configurations: read from files, checked, with values replaced by ``--set``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoplan.errors import InputError, UsageError
from autoplan.ir.fields import Json
from autoplan.ir.names import near_matches

__all__ = [
    "canonical",
    "hf_config",
    "read_config",
    "store",
    "transformers_library",
    "with_overrides",
]


def read_config(path: Path) -> dict[str, Json]:
    """Configuration of a ``config.json`` or of the directory that holds it."""
    file = path / "config.json" if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(
            f"{file} does not exist", hint="give the path of a config.json or of its directory"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} can't be read: {error}", hint="give the path of a config.json"
        ) from error
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{file}:{error.lineno}: not JSON: {error.msg}", hint="write the file again"
        ) from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise InputError(
            f"{file}: no model configuration (it has no model_type)",
            hint="give the config.json of a Hugging Face model",
        )
    return config


def transformers_library() -> Any:
    """The library, or an error that says how to install it."""
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            "this model is built by transformers, which is not installed",
            hint="pip install 'autoplan-torch[hf]'",
        ) from error
    return transformers


def hf_config(
    config: Mapping[str, Json], spec: str, directory: str, trust_remote_code: bool
) -> Any:
    """Configuration object of ``transformers`` with these values."""
    transformers = transformers_library()
    if trust_remote_code and config.get("auto_map"):
        loaded = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=True)
        loaded.update(dict(config))
        return loaded
    model_type = str(config["model_type"])
    known = transformers.CONFIG_MAPPING
    if model_type not in known:
        raise UsageError(
            f"{spec}: transformers {transformers.__version__} has no model type {model_type!r}",
            hint=near_matches(model_type, list(known.keys()), what="model types"),
        )
    values = {key: value for key, value in config.items() if key != "model_type"}
    try:
        loaded = known[model_type](**values)
    except Exception as error:
        # transformers validates with its own exception types, which changed between releases.
        text = " ".join(str(error).split())
        raise InputError(
            f"{spec}: invalid configuration: {text}",
            hint="check the configuration and the values given with --set",
        ) from error
    for part in (loaded, *(getattr(loaded, key, None) for key in loaded.sub_configs)):
        if part is not None:
            part.use_cache = False
    return loaded


def with_overrides(
    config: Mapping[str, Json], base: Any, overrides: Mapping[str, Json], spec: str
) -> dict[str, Json]:
    """``config`` with values replaced; ``a.b`` names key ``b`` of the nested configuration ``a``.

    ``base`` is the configuration object of ``config``, which knows the keys with a default.
    """
    merged: dict[str, Json] = dict(config)
    for key, value in overrides.items():
        *path, last = key.split(".")
        owner, values = base, merged
        for depth, part in enumerate(path):
            inner = getattr(owner, part, None) if part in _keys(owner) else None
            if inner is None or not hasattr(inner, "to_dict"):
                where = ".".join(path[:depth])
                raise UsageError(
                    f"{spec}: the configuration has no part {'.'.join(path[: depth + 1])!r}",
                    hint=near_matches(part, _parts(owner), what="parts")
                    + (f" in {where}" if where else ""),
                )
            own = values.get(part)
            copy: dict[str, Json] = dict(own) if isinstance(own, dict) else {}
            values[part] = copy
            owner, values = inner, copy
        least = 1 if last.startswith(("n_", "num_")) or last.endswith("_size") else 0
        if isinstance(value, int) and not isinstance(value, bool) and value < least:
            raise UsageError(f"--set {key}={value}: it must be at least {least}")
        if last not in _keys(owner) and last not in values:
            nested = [f"{part}.{last}" for part in _parts(owner)]
            found = [name for name in nested if last in _keys(getattr(owner, name.split(".")[0]))]
            hint = near_matches(last, _keys(owner), what="keys")
            raise UsageError(
                f"{spec}: the configuration has no key {key!r}",
                hint=f"did you mean {' or '.join(found)}?" if found and not path else hint,
            )
        store(values, owner, last, value)
    return merged


def canonical(config: Any, key: str) -> str:
    """The name under which the configuration stores ``key``."""
    return str(config.attribute_map.get(key, key))


def store(values: dict[str, Json], config: Any, key: str, value: Json) -> None:
    """Set ``key`` in ``values`` under the one name that counts."""
    name = canonical(config, key)
    for alias, stored in config.attribute_map.items():
        if stored == name:
            values.pop(alias, None)
    values[name] = value


def _keys(config: Any) -> set[str]:
    known = {*config.to_dict(), *config.attribute_map}
    if getattr(config, "is_encoder_decoder", False):
        # T5 reads it but has no default for it.
        known.add("decoder_start_token_id")
    return {key for key in known if not key.startswith("_")}


def _parts(config: Any) -> list[str]:
    return [key for key in config.sub_configs if getattr(config, key, None) is not None]
