"""Names of the elementwise operators, with broadcasting."""

from __future__ import annotations

__all__ = ["ADDITIVE", "ELEMENTWISE", "LINEAR"]

ELEMENTWISE = (
    "abs", "acos", "acosh", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2", "atanh",
    "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or", "bitwise_right_shift",
    "bitwise_xor", "ceil", "celu", "clamp", "clamp_max", "clamp_min", "clip", "copysign", "cos",
    "cosh", "digamma", "elu", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1",
    "float_power", "floor", "floor_divide", "fmax", "fmin", "fmod", "frac", "ge", "gelu", "gt",
    "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "heaviside", "hypot", "isfinite", "isin",
    "isinf", "isnan", "isneginf", "isposinf", "le", "leaky_relu", "lerp", "lgamma", "log", "log10",
    "log1p", "log2", "log_sigmoid", "logaddexp", "logaddexp2", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logit", "lt", "masked_fill", "maximum", "max.other",
    "min.other", "minimum", "mish", "nan_to_num", "ne", "pow", "reciprocal", "relu",
    "relu6", "remainder", "round", "rsqrt", "rsub", "selu", "sgn", "sigmoid", "sign", "signbit",
    "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "special_entr", "special_erfcx",
    "special_xlog1py", "sqrt", "square", "tan", "tanh", "threshold", "trunc", "where.ScalarOther",
    "where.ScalarSelf", "where.self", "where.Scalar", "xlogy",
)  # fmt: skip
LINEAR = ("alias", "clone", "contiguous", "deg2rad", "detach", "lift_fresh_copy", "neg", "positive",
          "rad2deg", "to", "_to_copy", "type_as")  # fmt: skip
ADDITIVE = ("add", "sub")
