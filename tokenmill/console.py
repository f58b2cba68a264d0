"""Entry point of the `tokenmill` command, before our packages are on the path of an installation."""

from __future__ import annotations

from tokenmill.processes import put_our_packages_first


def main() -> None:
    """Run the command line as `cli.main` does."""
    put_our_packages_first()
    from cli.main import main as run

    run()
