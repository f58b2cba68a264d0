"""`python -m tokenmill`: the same as the command `tokenmill`."""

from __future__ import annotations

from tokenmill.console import main

if __name__ == "__main__":
    main()
