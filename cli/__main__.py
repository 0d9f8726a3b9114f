"""``python -m autoplan.cli``: the same as the ``autoplan`` command."""

import sys

from autoplan.cli.main import main

__all__: list[str] = []

sys.exit(main())
