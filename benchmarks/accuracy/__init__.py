"""Predictions against measurements: published runs, priced as they were run."""
