"""The parts of a feature, by name: each surface of the service resolves only the parts that it needs.

A part is written `module:attribute`, so that `tokenmill --help` loads no web framework, and a GPU worker no pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any


class Section(StrEnum):
    """Headings of `tokenmill --help`, in their order there."""

    MACHINE = "On this machine"
    RUNNING = "Status"
    SERVER = "On a server"
    ADMINISTRATION = "Administration"
    ROLES = "Roles"
    MEASUREMENTS = "Measurements"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of `tokenmill`, or a group of commands."""

    name: str
    part: str
    """A `typer.Typer` for a group, a function for a command."""
    section: Section
    help: str
    """The line that `tokenmill --help` shows; a test compares it with the command's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scopes:
    """The operations of a feature, by the scope that a key needs for them."""

    read: tuple[str, ...] = ()
    submit: tuple[str, ...] = ()
    admin: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    """Operations that need no key."""


@dataclass(frozen=True, slots=True)
class MenuEntry:
    """A page in the dashboard's menu."""

    path: str
    title: str
    for_tenants: bool = True
    for_operators: bool = False
    needs_submit: bool = False
    """Hidden from keys that may only read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature of the service; fields without such a part are empty."""

    name: str
    settings: str | None = None
    """A subclass of `jobs.settings.Settings` with its own: code gets them by `settings.of(…)`."""
    tables: tuple[str, ...] = ()
    """Modules that declare tables."""
    routers: tuple[str, ...] = ()
    """Routers of the API; the first one with a path answers it."""
    bodies: tuple[str, ...] = ()
    """Models of bodies that endpoints parse themselves, for the schema."""
    lines: tuple[str, ...] = ()
    """Models of the lines of files, for the schema."""
    services: Mapping[str, str] = field(default_factory=dict)
    """Services that endpoints share in an API process, by name: functions of the settings and the object store."""
    scopes: Scopes = Scopes()
    commands: tuple[Command, ...] = ()
    pages: tuple[str, ...] = ()
    """Routers of the dashboard."""
    templates: str | None = None
    """The package whose folder `pages` contains the templates."""
    menu: tuple[MenuEntry, ...] = ()
    tones: Mapping[str, str] = field(default_factory=dict)
    """The colours of its own states on pages: good, warn or bad."""
    control: tuple[str, ...] = ()
    """Work of a control worker: `workers.control_work.ControlWork`."""
    recipes: tuple[str, ...] = ()
    """Recipes of flows, `flows.recipe.Recipe`: functions of `workers.control_work.ControlParts`."""
    purges: tuple[str, ...] = ()
    """Purges of a control worker: functions that return a sequence of `jobs.purges.Purge`."""
    meters: Mapping[str, str] = field(default_factory=dict)
    """Meters by the role that keeps them."""
    counts: tuple[str, ...] = ()
    """Numbers for `/metrics` that are counted with those of the queue: `jobs.hooks.QueueCount`."""
    on_event: tuple[str, ...] = ()
    """Functions of `(session, tenant_id, event type, data)`, called in the transaction that makes an event true."""
    stored_bytes: tuple[str, ...] = ()
    """Functions of `(session, tenant_id)`: bytes of its objects that are not files but count as stored."""
    on_tenant_end: tuple[str, ...] = ()
    """Functions of `(session, tenant_id)`, called in the transaction that ends a tenant."""
    holders: tuple[str, ...] = ()
    """What fills lines of batches before they run: `jobs.hooks.Holder`."""


def resolve(part: str) -> Any:
    """Return the attribute that `module:attribute` names."""
    module, _, attribute = part.partition(":")
    return getattr(import_module(module), attribute)
