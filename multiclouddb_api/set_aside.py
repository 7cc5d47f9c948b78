"""Keeps records that could not be processed in a folder, so that the others can go on.

A mirror keeps what its table refuses, and `ChangeFeedIterator.handling` the events of a handler that raised.

Each record is one file with a JSON object, which only the file's owner may read:

    {"v": 1, "at": "2026-11-28T02:15:00Z", "kind": "row", "collection": ["shop", "orders"],
     "target": "/data/orders", "partition": "…", "position": "…", "key": {"_id": "o-1"},
     "partition_components": 1, "type": "UPDATE", "order_key": "…", "event_id": "…", "reason": "…",
     "timestamp": "2026-11-28T02:14:59Z", "by_expiry": false, "backfilled": false, "had_document": true}

The `target` is empty for an event of a handler. The `kind` is `"row"` for a change that was read, and
`"record"` for one that cannot be decoded, of which neither key nor type is known. The document is in the file
only if its user has asked for that. The name of a file goes by what it contains, so a record that comes again
after a restart replaces its file. A file is complete, and on the disk, before the position may move past its
record.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, Final, Protocol

import attrs

from multiclouddb_api.codec import decode_json, encode_json
from multiclouddb_api.errors import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    invalid_request,
)
from multiclouddb_api.event import ChangeEvent, ChangeType
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.lookup import NotKnown
from multiclouddb_api.page import RecordSkipped
from multiclouddb_api.redaction import rfc3339
from multiclouddb_api.request import ResourceAddress, is_same_collection
from multiclouddb_api.validators import path_here

if TYPE_CHECKING:
    from multiclouddb_api.lookup import LookupAnswer
    from multiclouddb_api.request import ProviderOptions

__all__ = ["BEHIND", "HANDLER", "Retried", "SetAside", "SetAsideFolder", "failure_text"]

HANDLER: Final = ""
"""The target of the events of a handler."""
BEHIND: Final = "an earlier change of its key is set aside"
"""The reason of an event that must not overtake another one."""
_VERSION: Final = 1
_FILE: Final = "*.json"


@attrs.frozen
class SetAside:
    """A record that was set aside."""

    address: ResourceAddress
    """The collection."""
    target: str
    """Where the record was to be written, without secrets; `HANDLER` for an event of a handler."""
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
    old_document: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    """The document before the change, under the same conditions."""
    had_document: bool = False
    """True if the change had a document, whether or not it is kept here."""
    timestamp: datetime | None = None
    """The time of the change; None for a record that cannot be decoded."""
    by_expiry: bool | None = None
    """The `by_expiry` of the change."""
    backfilled: bool = False
    """The `backfilled` of the change."""

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
            old_document=event.old_item_state if documents else None,
            had_document=event.new_item_state is not None, timestamp=event.timestamp,
            by_expiry=event.by_expiry, backfilled=event.backfilled,
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
        # An event that comes again, after a split from another partition, has the same id.
        own = (self.partition_id, self.position) if self.event_id is None else (self.event_id,)
        parts = (str(self.address), self.target, *own)
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
                "timestamp": None if self.timestamp is None else rfc3339(self.timestamp),
                "by_expiry": self.by_expiry,
                "backfilled": self.backfilled,
                "had_document": self.had_document,
            }
        for name, document in (("document", self.document), ("old_document", self.old_document)):
            if document is not None:
                value[name] = dict(document)
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
                    old_document=value.get("old_document"),
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
                "timestamp": str(timestamp),
                "by_expiry": bool() | None as by_expiry,
                "backfilled": bool(backfilled),
                "had_document": bool(had_document),
            }:
                return attrs.evolve(
                    found, key=MulticloudDbKey(components, count), type=kind, order_key=order_key,
                    event_id=event_id, timestamp=datetime.fromisoformat(timestamp), by_expiry=by_expiry,
                    backfilled=backfilled, had_document=had_document,
                )  # fmt: skip
            case _:
                return found

    def event(self, document: Mapping[str, Any] | None) -> ChangeEvent:
        """Return the event again.

        Args:
            document: Its document.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if it cannot be decoded.
        """
        if (
            self.key is None or self.type is None or self.event_id is None
            or self.order_key is None or self.timestamp is None
        ):  # fmt: skip
            raise invalid_request(
                "SetAside", "cannot be decoded", "look at the record at its position, and remove the file"
            )
        return ChangeEvent(
            self.event_id, self.key, ChangeType(self.type), self.timestamp, document, self.old_document,
            self.order_key, self.by_expiry, self.backfilled, self.address, self.partition_id,
        )  # fmt: skip


class LooksUp(Protocol):
    """The part of a client that a retry calls."""

    def lookup(
        self,
        address: ResourceAddress | str,
        keys: Iterable[MulticloudDbKey],
        *,
        provider_options: ProviderOptions | None = None,
    ) -> Mapping[MulticloudDbKey, LookupAnswer]:
        """See `MulticloudDbClient.lookup`."""
        ...


@attrs.frozen
class Retried:
    """What became of the events that were handled again."""

    handled: int
    """The number of events that were handled, and are no longer set aside."""
    left: int
    """The number of events that are still set aside."""
    reasons: tuple[str, ...]
    """Why they are."""


def failure_text(error: BaseException, *, documents: bool) -> str:
    """Return an exception as text: its class, and where it was raised.

    Args:
        error: The exception.
        documents: True to add its message, which may contain values of a document; an error of this library
            contains none, so its message is always there.
    """
    frames = extract_tb(error.__traceback__)
    where = f" in {frames[-1].name} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    message = f": {error}" if documents or isinstance(error, MulticloudDbError) else ""
    return f"{type(error).__name__}{where}{message}"


class SetAsideFolder:
    """A folder with the records that were set aside, of one or several tables, or of one handler.

    Args:
        path: The folder, which is made with the first record.
        most: The most records of one table, or of one collection's handler, that may be in it.
    """

    def __init__(self, path: str | os.PathLike[str], most: int = 100) -> None:
        self.path, self._most = path_here("set_aside", path), most

    def records(self, address: ResourceAddress | None = None, target: str | None = None) -> list[SetAside]:
        """Return records, in the order of their changes.

        Args:
            address: The collection; all of them by default.
            target: The table, or `HANDLER`; all of them by default.

        Raises:
            MulticloudDbError: `INVALID_REQUEST` if the folder has a file that is no record.
        """
        found = list[SetAside]()
        for file in sorted(self.path.glob(_FILE)) if self.path.is_dir() else ():
            with suppress(FileNotFoundError):  # a retry has removed it meanwhile
                record = SetAside.from_json(file.read_bytes(), file.name)
                if target in (None, record.target) and (
                    address is None or is_same_collection(record.address, address)
                ):
                    found.append(record)
        return sorted(found, key=lambda each: (each.order_key or "", each.at))

    def has(self, name: str) -> bool:
        """Return whether a record is still set aside.

        Args:
            name: Its `SetAside.name`.
        """
        return (self.path / name).exists()

    def add(self, records: list[SetAside]) -> None:
        """Write records; when the call returns, they are on the disk.

        Args:
            records: Records of one table.

        Raises:
            MulticloudDbError: `PERMANENT_FAILURE` if the folder would have more than `most` of the table, or
                cannot be written; in the first case none was written.
        """
        if not records:
            return
        first = records[0]
        names = {each.name for each in (*self.records(first.address, first.target), *records)}
        if len(names) > self._most:
            raise MulticloudDbError(
                f"set_aside: more than {self._most} records of {first.target or first.address} could not be "
                f"processed, the last because: {records[-1].reason}; look into {self.path}, correct the "
                "cause, and retry them; or raise max_set_aside (--max-set-aside)",
                ErrorDetail(ErrorCategory.PERMANENT_FAILURE),
            )
        with self._writing():
            if not self.path.is_dir():
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                _sync(self.path.parent)
            for each in records:
                self._write(self.path / each.name, each.to_json())
            _sync(self.path)

    def _write(self, file: Path, content: bytes) -> None:
        # A cancelled task's thread may still be writing the same record.
        draft = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.draft")
        with suppress(FileNotFoundError):
            draft.unlink()
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        draft.replace(file)

    def remove(self, record: SetAside) -> None:
        """Remove a record whose change is in the table, or was handled.

        Args:
            record: One of `records`.
        """
        with self._writing():
            (self.path / record.name).unlink(missing_ok=True)
            _sync(self.path)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MulticloudDbError(
                f"set_aside: cannot write {self.path} ({error.strerror}); make room there, or allow the "
                "job's user to write it",
                ErrorDetail(ErrorCategory.PERMANENT_FAILURE, native_class=type(error).__name__),
            ) from error

    def retry(
        self,
        handle: Callable[[ChangeEvent], object],
        client: LooksUp | None = None,
        provider_options: ProviderOptions | None = None,
    ) -> Retried:
        """Handle the events of a handler again: those of each key in the order of its changes.

        The record of an event that was handled is removed. Of a key whose event fails again, the later
        events wait. A reader that sets aside may run at the same time. If the process is killed between
        handling and removing, the event is handled again by the next retry.

        Args:
            handle: The handler. An `Exception` means that it has failed.
            client: Reads the documents that are not in the folder, as they are now; None if every document
                was kept. A document that does not exist any more is None in its event.
            provider_options: The provider's options for reading them, if it has any.

        Raises:
            MulticloudDbError: `CONFLICT` if another process retries; `INVALID_REQUEST` without a client that
                is needed, or if the folder has a file that is no record; and what `lookup` raises.
        """
        handled, tried, blocked = 0, set[str](), set[object]()
        left, reasons = 0, list[str]()
        with self._alone():
            while new := [each for each in self.records(target=HANDLER) if each.name not in tried]:
                for record in new:
                    tried.add(record.name)
                    why = self._failure(record, handle, client, provider_options, blocked)
                    if why is None:
                        handled += 1
                        self.remove(record)
                    else:
                        blocked.add((record.address, record.key))
                        left += 1
                        reasons.append(why)
        return Retried(handled, left, tuple(dict.fromkeys(reasons)))

    def _failure(
        self,
        record: SetAside,
        handle: Callable[[ChangeEvent], object],
        client: LooksUp | None,
        provider_options: ProviderOptions | None,
        blocked: set[object],
    ) -> str | None:
        """Handle one event; return why it stays set aside, or None."""
        if record.key is None:
            return record.reason
        if (record.address, record.key) in blocked:
            return BEHIND
        document = record.document
        if document is None and record.had_document:
            if client is None:
                raise invalid_request(
                    "client",
                    "is missing, and the documents are not in the folder",
                    "pass a client (URL on the command line), which reads them as they are now",
                )
            keys = [record.key]
            answer = client.lookup(record.address, keys, provider_options=provider_options)[record.key]
            if isinstance(answer, NotKnown):
                return answer.reason
            document = None if answer is None else answer.new_item_state
        event = record.event(document)
        try:
            handle(event)
        except Exception as error:  # noqa: BLE001 - whatever it is, the event stays set aside
            return failure_text(error, documents=record.document is not None)
        return None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other retries of the folder away, which would handle its events a second time."""
        if not self.path.is_dir():
            yield
            return
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MulticloudDbError(
                    f"set_aside: another process retries the events of {self.path}; wait for its end",
                    ErrorDetail(ErrorCategory.CONFLICT, reason=ErrorReason.OTHER_WRITER),
                ) from None
            yield
        finally:
            os.close(handle)


def _sync(folder: Path) -> None:
    """Make the names of new files durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
