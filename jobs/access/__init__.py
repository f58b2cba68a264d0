"""Database access: four Postgres roles, and their rights on every table.

An owner for migrations, a plain role for services, a smaller one for prepare workers, and one that may only ask for
the number of workers.
"""

from __future__ import annotations

from jobs.access.arranging import arrange
from jobs.access.rights import FUNCTIONS, OWNER, PREPARE, ROLES, SCALER, SERVICE, TABLES, Right, Rights
from jobs.access.roles import make_roles
from jobs.access.standing import Standing, standing_of

__all__ = [
    "FUNCTIONS",
    "OWNER",
    "PREPARE",
    "ROLES",
    "SCALER",
    "SERVICE",
    "TABLES",
    "Right",
    "Rights",
    "Standing",
    "arrange",
    "make_roles",
    "standing_of",
]
