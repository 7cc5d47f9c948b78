"""Makes resource ids and etags. The ids are random, so that a restarted server refuses earlier ids."""

from __future__ import annotations

import base64
import secrets
import struct
import uuid

__all__ = ["container_rid", "database_rid", "document_rid", "new_etag", "offer_rid"]


def _text(raw: bytes) -> str:
    # A resource id is part of paths, so it contains no slash.
    return base64.b64encode(raw).decode().replace("/", "-")


def _bytes(rid: str) -> bytes:
    return base64.b64decode(rid.replace("-", "/"))


def database_rid() -> str:
    """Return the resource id of a database: eight characters for four random bytes."""
    return _text(secrets.token_bytes(4))


def container_rid(database: str) -> str:
    """Return a container's resource id: the database's bytes, and four bytes whose first bit is set."""
    first, *rest = secrets.token_bytes(4)
    return _text(_bytes(database) + bytes([first | 0x80, *rest]))


def document_rid(container: str, number: int) -> str:
    """Return the resource id of a document: the container's bytes and the number of the document."""
    return _text(_bytes(container) + struct.pack("<Q", number))


def offer_rid() -> str:
    """Return the resource id of an offer, which has four characters."""
    return _text(secrets.token_bytes(3))


def new_etag() -> str:
    """Return a new etag, including its quotes."""
    return f'"{uuid.uuid4()}"'
