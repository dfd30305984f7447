"""`python -m eagle3chat`, and the console script."""

from __future__ import annotations

import sys

from eagle3chat.cli import main

if __name__ == "__main__":
    sys.exit(main())
