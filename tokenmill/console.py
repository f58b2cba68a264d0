"""Where the `tokenmill` command begins: in an installation our packages are not on the path yet."""

from __future__ import annotations

from tokenmill.processes import put_our_packages_first


def main() -> None:
    """Run the command line as `cli.main` does."""
    put_our_packages_first()
    from cli.main import main as run

    run()
