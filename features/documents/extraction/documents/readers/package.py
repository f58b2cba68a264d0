"""Zip packages of Office: members within unpacking limits, their XML, and the links between them."""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from dataclasses import dataclass
from typing import Self

from lxml import etree

from features.documents.extraction.documents.limits import Limits
from features.documents.extraction.errors import DocumentCode, DocumentError

_IS_ENCRYPTED = 0x1
_RELATION = "{http://schemas.openxmlformats.org/package/2006/relationships}Relationship"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A reference to a member: its key, the last word of its type, the member."""

    key: str
    kind: str
    member: str


class Package:
    """Create with `open`, which reports problems of the file."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.members = tuple(archive.namelist())

    @classmethod
    def open(cls, content: bytes, limits: Limits) -> Self:
        """Open a package. Raises DocumentError if it is damaged, protected, or unpacks too large."""
        try:
            archive = zipfile.ZipFile(io.BytesIO(content))
        except (zipfile.BadZipFile, NotImplementedError, ValueError) as error:
            raise DocumentError(DocumentCode.DAMAGED, f"the zip file is damaged: {error}") from None
        if any(member.flag_bits & _IS_ENCRYPTED for member in archive.infolist()):
            message = "the file is protected by a password; save it without one"
            raise DocumentError(DocumentCode.ENCRYPTED, message)
        size = sum(member.file_size for member in archive.infolist())
        if size > limits.max_unpacked_bytes:
            message = f"the file unpacks to {size} bytes; the limit is {limits.max_unpacked_bytes} bytes"
            raise DocumentError(DocumentCode.UNPACKS_TOO_LARGE, message)
        return cls(archive)

    def read(self, member: str) -> bytes:
        """Return a member. Raises DocumentError if it is missing or damaged."""
        try:
            return self._archive.read(member)  # never more than its directory entry says: then the checksum fails
        except KeyError:
            raise DocumentError(DocumentCode.DAMAGED, f"{member} is missing in the file") from None
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DocumentError(DocumentCode.DAMAGED, f"{member} in the file is damaged: {error}") from None

    def xml(self, member: str) -> etree._Element:
        """Return a member as XML. Raises DocumentError if it is invalid or declares entities, and MemoryError."""
        parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
        try:
            root = etree.fromstring(self.read(member), parser)
        except etree.XMLSyntaxError as error:
            if error.code == etree.ErrorTypes.ERR_NO_MEMORY:  # lxml reports "unknown error"
                raise MemoryError from None
            raise DocumentError(DocumentCode.DAMAGED, f"{member} in the file is not XML: {error}") from None
        if root.getroottree().docinfo.doctype:
            raise DocumentError(
                DocumentCode.DAMAGED, f"{member} in the file declares its own entities; Office has none"
            )
        return root

    def links(self, member: str) -> tuple[Link, ...]:
        """Return what a member, or the package itself for "", links to inside the file."""
        folder, name = posixpath.split(member)
        place = posixpath.join(folder, "_rels", f"{name}.rels")
        if place not in self.members:
            return ()
        return tuple(
            Link(
                key=relation.get("Id", ""),
                kind=relation.get("Type", "").rpartition("/")[2],
                member=posixpath.normpath(posixpath.join("/", folder, relation.get("Target", ""))).lstrip("/"),
            )
            for relation in self.xml(place).iter(_RELATION)
            if relation.get("TargetMode") != "External"
        )

    def main(self) -> str:
        """Return the main member. Raises DocumentError if none is named."""
        for link in self.links(""):
            if link.kind == "officeDocument":
                return link.member
        raise DocumentError(DocumentCode.DAMAGED, "the file names no main part")
