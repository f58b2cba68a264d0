"""Imported by Python at startup if this folder is on PYTHONPATH: replaces the engine in engine processes.

Does nothing in other processes.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

if "engine.process.child" in sys.orig_argv:
    from lab.no_compute import STATED
    from lab.no_compute.engine import EchoEngine

    stand_in = ModuleType("engine.build")
    stand_in.build_engine = EchoEngine  # type: ignore[attr-defined]
    if os.environ.get(STATED):
        from lab.no_compute.stated import StatedEngine

        stand_in.build_engine = StatedEngine  # type: ignore[attr-defined]
    sys.modules["engine.build"] = stand_in
