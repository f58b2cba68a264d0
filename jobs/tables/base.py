"""The base class of tables: names of constraints, types of columns."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import BigInteger, Date, DateTime, LargeBinary, MetaData, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
            "fk": "%(table_name)s_%(column_0_N_name)s_fkey",
            "pk": "%(table_name)s_pkey",
        }
    )
    type_annotation_map = {  # noqa: RUF012 - the mapping is SQLAlchemy's own protocol
        datetime: DateTime(timezone=True),
        date: Date,
        str: Text,
        int: BigInteger,
        bytes: LargeBinary,
        dict[str, Any]: JSONB,
        list[dict[str, Any]]: JSONB,
    }


def one_of(column: str, values: Iterable[StrEnum]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


def created_at() -> Mapped[datetime]:
    return mapped_column(server_default=func.now())
