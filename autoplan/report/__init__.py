"""Views of a plan: data for ``--json``, text for a terminal. Views never recompute a price."""

__all__: list[str] = []
