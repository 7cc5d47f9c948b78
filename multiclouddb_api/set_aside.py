"""Keeps records that could not be processed in a folder, so that the others can go on.

Each record is one file with a JSON object, which only the file's owner may read:

    {"v": 1, "at": "2026-11-28T02:15:00Z", "kind": "row", "collection": ["shop", "orders"],
     "target": "/data/orders", "partition": "…", "position": "…", "key": {"_id": "o-1"},
     "partition_components": 1, "type": "UPDATE", "order_key": "…", "event_id": "…", "reason": "…"}

The `kind` is `"row"` for a change that was read, and `"record"` for one that cannot be decoded, of which
neither key nor type is known. The document is in the file only if its user has asked for that. The name of a
file goes by what it contains, so a record that comes again after a restart replaces its file. A file is
complete, and on the disk, before the position may move past its record.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs

from multiclouddb_api.codec import decode_json, encode_json
from multiclouddb_api.errors import ErrorCategory, ErrorDetail, MulticloudDbError, invalid_request
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.page import RecordSkipped
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.request import ResourceAddress
from multiclouddb_api.validators import path_here

__all__ = ["SetAside", "SetAsideFolder"]

_VERSION: Final = 1
_FILE: Final = "*.json"


@attrs.frozen
class SetAside:
    """A record that was set aside."""

    address: ResourceAddress
    """The collection."""
    target: str
    """Where the record was to be written, without secrets."""
    position: str
    """The position of the record, as readable text."""
    partition_id: str
    """The partition of the record."""
    reason: str
    """Why it could not be processed; it contains nothing of a document."""
    at: datetime = attrs.field(factory=lambda: datetime.now(UTC))
    """When it was set aside."""
    key: MulticloudDbKey | None = attrs.field(default=None, repr=False)
    """The key, if it is known."""
    type: str | None = None
    """The type of the change; None for a record that cannot be decoded."""
    order_key: str | None = None
    """The `order_key` of the change; None for a record that cannot be decoded."""
    event_id: str | None = None
    """The id of the change; None for a record that cannot be decoded."""
    document: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The document, if its user has asked for it and the change has one."""

    @classmethod
    def of_event(
        cls, event: ChangeEvent, address: ResourceAddress, target: str, reason: str, *, documents: bool
    ) -> SetAside:
        """Return what is kept of a change.

        Args:
            event: The change.
            address: The collection.
            target: See `target`.
            reason: See `reason`.
            documents: True to keep the document too.
        """
        return cls(
            address, target, event.order_key, event.partition_id, reason,
            key=event.key, type=str(event.type), order_key=event.order_key, event_id=event.event_id,
            document=event.new_item_state if documents else None,
        )  # fmt: skip

    @classmethod
    def of_notice(cls, notice: RecordSkipped, address: ResourceAddress, target: str) -> SetAside:
        """Return what is kept of a record that was skipped because it cannot be decoded.

        Args:
            notice: The notice of the page.
            address: The collection.
            target: See `target`.
        """
        reason = "the record cannot be decoded"
        return cls(address, target, notice.position, notice.partition_id, reason)

    @property
    def name(self) -> str:
        """The name of its file."""
        parts = (str(self.address), self.target, self.partition_id, self.event_id or self.position)
        return hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).hexdigest()[:32] + ".json"

    def to_json(self) -> bytes:
        """Return the content of the file."""
        value: dict[str, Any] = {
            "v": _VERSION,
            "at": rfc3339(self.at),
            "kind": "record" if self.key is None else "row",
            "collection": [self.address.database, self.address.collection],
            "target": self.target,
            "partition": self.partition_id,
            "position": self.position,
            "reason": self.reason,
        }
        if self.key is not None:
            value |= {
                "key": dict(self.key.components),
                "partition_components": self.key.partition_components,
                "type": self.type,
                "order_key": self.order_key,
                "event_id": self.event_id,
            }
        if self.document is not None:
            value["document"] = dict(self.document)
        return encode_json(value)

    @classmethod
    def from_json(cls, text: bytes, where: str) -> SetAside:
        """Return what a file contains.

        Args:
            text: The content of the file.
            where: The file, for the message.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if it is no such file.
        """
        try:
            value = decode_json(text)
        except MulticloudDbError:
            value = None
        match value:
            case {
                "v": 1,
                "at": str(at),
                "collection": [str() | None as database, str() | None as collection],
                "target": str(target),
                "partition": str(partition),
                "position": str(position),
                "reason": str(reason),
            }:
                found = cls(
                    ResourceAddress(database, collection), target, position, partition, reason,
                    datetime.fromisoformat(at), document=value.get("document"),
                )  # fmt: skip
            case _:
                raise invalid_request(
                    "set_aside", f"has {where}, which is no record that was set aside", "move it elsewhere"
                )
        match value:
            case {
                "key": dict(components),
                "partition_components": int(count),
                "type": str(kind),
                "order_key": str(order_key),
                "event_id": str(event_id),
            }:
                key = MulticloudDbKey(components, count)
                return attrs.evolve(found, key=key, type=kind, order_key=order_key, event_id=event_id)
            case _:
                return found


class SetAsideFolder:
    """A folder with the records that were set aside, of one or several tables.

    Args:
        path: The folder, which is made with the first record.
        most: The most records of one table that may be in it.
    """

    def __init__(self, path: str | os.PathLike[str], most: int = 100) -> None:
        self.path, self._most = path_here("set_aside", path), most

    def records(self, address: ResourceAddress, target: str) -> list[SetAside]:
        """Return the records of one table, in the order of their changes.

        Args:
            address: The collection.
            target: The table.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the folder has a file that is no record.
        """
        found = list[SetAside]()
        for file in sorted(self.path.glob(_FILE)) if self.path.is_dir() else ():
            try:
                content = file.read_bytes()
            except FileNotFoundError:  # another process has retried it meanwhile
                continue
            record = SetAside.from_json(content, file.name)
            if record.target == target and _is_same(record.address, address):
                found.append(record)
        return sorted(found, key=lambda each: (each.order_key or "", each.at))

    def add(self, records: list[SetAside]) -> None:
        """Write records; when the call returns, they are on the disk.

        Args:
            records: Records of one table.

        Raises:
            MulticloudDbError: `PERMANENT_FAILURE` if the folder would have more than `most` of the table;
                then none was written.
        """
        if not records:
            return
        first = records[0]
        names = {each.name for each in (*self.records(first.address, first.target), *records)}
        if len(names) > self._most:
            raise MulticloudDbError(
                f"set_aside: more than {self._most} records of {first.target} could not be processed, the "
                f"last because: {records[-1].reason}; look into {self.path}, correct the cause, and retry "
                "them; or raise max_set_aside (--max-set-aside)",
                ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
            )
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in records:
            self._write(self.path / each.name, each.to_json())
        _sync(self.path)

    def _write(self, file: Path, content: bytes) -> None:
        draft = file.with_suffix(f".{os.getpid()}.draft")
        with suppress(FileNotFoundError):
            draft.unlink()
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)

    def remove(self, record: SetAside) -> None:
        """Remove a record whose change is in the table.

        Args:
            record: One of `records`.
        """
        (self.path / record.name).unlink(missing_ok=True)
        _sync(self.path)


def _is_same(one: ResourceAddress, other: ResourceAddress) -> bool:
    """Return whether two addresses are of one collection; a database that has a default may be left out."""
    databases = {one.database, other.database} - {None}
    return one.collection == other.collection and len(databases) < 2


def _sync(folder: Path) -> None:
    """Make the names of new files durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
