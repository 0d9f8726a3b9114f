"""Types of the fields of a plan file: what a name, a size or a placement may look like there."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

__all__ = [
    "DType",
    "Digest",
    "Factor",
    "Fqn",
    "Identifier",
    "Json",
    "Pass",
    "PlacementText",
    "PlanRecord",
    "Seconds",
    "Size",
    "StoredText",
    "Target",
    "Text",
]

Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Fqn = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", max_length=500)
]
Target = Annotated[
    str,
    StringConstraints(
        pattern=r"^(aten\.(__(and|or|xor|lshift|rshift|iand|ior|ixor)__|_?[a-zA-Z][a-zA-Z0-9_]*)"
        r"\.[a-zA-Z][a-zA-Z0-9_]*|[a-zA-Z][a-zA-Z0-9_]*\._?[a-zA-Z][a-zA-Z0-9_]*\.[a-zA-Z]"
        r"[a-zA-Z0-9_]*)$"
    ),
]
Text = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f-\x9f]*$", max_length=2000)]
Size = Annotated[int, Field(ge=0, le=2**40)]
PlacementText = Annotated[str, StringConstraints(pattern=r"^(R|P|S\(\d+(,([1-9]\d*|pad))?\))$")]
DType = Annotated[
    str,
    StringConstraints(
        pattern=r"^(float(64|32|16)|bfloat16|float8_e4m3fn|int(64|32|16|8)|uint8|bool|complex64)$"
    ),
]
StoredText = Annotated[str, StringConstraints(pattern=r"^(R|S\(\d+(,([1-9]\d*|pad))?\))$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16,64}$")]
Json = JsonValue
Seconds = Annotated[float, Field(ge=0)]
Factor = Annotated[float, Field(ge=1)]
Pass = tuple[Seconds, Seconds]


class PlanRecord(BaseModel):
    """Part of a plan file: immutable, without unknown fields or numbers that JSON lacks."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
