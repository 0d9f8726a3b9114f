"""Every built-in and example model, captured, solved and verified: ``python -m benchmarks.zoo``."""
