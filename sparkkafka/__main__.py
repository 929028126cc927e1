"""`python -m sparkkafka`: the same as the command `sparkkafka`."""

from __future__ import annotations

import sys

from sparkkafka.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
