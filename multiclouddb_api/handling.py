"""Sets aside the events whose handling failed, for the loop of an iterator."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from threading import Lock
from types import TracebackType
from typing import Any, Final

from multiclouddb_api.errors import check_type, invalid_request, type_name
from multiclouddb_api.event import ChangeEvent
from multiclouddb_api.key import MulticloudDbKey
from multiclouddb_api.page import ChangeFeedPage, RecordSkipped
from multiclouddb_api.request import ResourceAddress
from multiclouddb_api.set_aside import BEHIND, HANDLER, SetAside, SetAsideFolder, failure_text

_LOG: Final = logging.getLogger("multiclouddb.iterator")


class Handling:
    """What one iterator sets aside, and which keys have to wait.

    An event that is set aside is on the disk before its page can be done, so a process that is killed at any
    moment reads it again or has it in the folder. While an event of a key is there, the later ones of this
    key go there too, because a handler that got them first would be overtaken by the retry.

    Args:
        folder: The folder of the handler.
        most: The most events of one collection that may be in it.
        address: The collection of the request, which the record of a skipped one names.
        documents: True to keep documents too.
    """

    def __init__(
        self, folder: str | os.PathLike[str], most: int, address: ResourceAddress, *, documents: bool
    ) -> None:
        self._folder = SetAsideFolder(folder, most)
        self._address, self._documents = address, documents
        self._waiting: dict[tuple[ResourceAddress, MulticloudDbKey], dict[str, str]] | None = None
        self._lock = Lock()  # with asyncio, the call of a cancelled task may still run

    def begin(self) -> None:
        """Forget what the folder contains: another process may have changed it since the last iteration."""
        self._waiting = None

    def is_free(self, event: ChangeEvent) -> bool:
        """Return True if it is known, without a look into the folder, that an event need not wait.

        Args:
            event: The next event.
        """
        waiting = self._waiting
        return waiting is not None and (event.address, event.key) not in waiting

    def holds(self, event: ChangeEvent) -> bool:
        """Return whether an event is set aside now, or was before, so that it is not to be handled.

        Args:
            event: The next event.

        Raises:
            MulticloudDbError: See `SetAsideFolder.add`.
        """
        with self._lock:
            place = (event.address, event.key)
            waiting = self._loaded()
            names = {name: order for name, order in waiting.get(place, {}).items() if self._folder.has(name)}
            waiting[place] = names
            record = self._record(event, BEHIND)
            if not names or (record.name not in names and event.order_key < min(names.values())):
                if not names:
                    del waiting[place]
                return False
            if record.name not in names:
                self._add(record)
            return True

    def failed(self, event: ChangeEvent, error: BaseException) -> None:
        """Set aside an event whose handling has failed.

        Args:
            event: The event.
            error: The exception of the handler.

        Raises:
            MulticloudDbError: See `SetAsideFolder.add`.
        """
        with self._lock:
            self._loaded()
            self._add(self._record(event, failure_text(error, documents=self._documents)))
        _LOG.warning("set aside a change of %s: %s", event.address, failure_text(error, documents=False))

    def skipped(self, page: ChangeFeedPage) -> None:
        """Set aside the records of a page that were skipped because they cannot be decoded.

        Args:
            page: The page.

        Raises:
            MulticloudDbError: See `SetAsideFolder.add`.
        """
        found = [each for each in page.notices if isinstance(each, RecordSkipped)]
        with self._lock:
            self._folder.add([SetAside.of_notice(each, self._address, HANDLER) for each in found])

    def _loaded(self) -> dict[tuple[ResourceAddress, MulticloudDbKey], dict[str, str]]:
        if self._waiting is None:
            waiting: dict[tuple[ResourceAddress, MulticloudDbKey], dict[str, str]] = {}
            for each in self._folder.records(target=HANDLER):
                if each.key is not None:
                    waiting.setdefault((each.address, each.key), {})[each.name] = each.order_key or ""
            self._waiting = waiting
        return self._waiting

    def _record(self, event: ChangeEvent, reason: str) -> SetAside:
        return SetAside.of_event(event, event.address, HANDLER, reason, documents=self._documents)

    def _add(self, record: SetAside) -> None:
        assert record.key is not None
        self._folder.add([record])
        place = (record.address, record.key)
        self._loaded().setdefault(place, {})[record.name] = record.order_key or ""


class Handled:
    """The handling of one event, as a block of `with` or `async with`.

    Args:
        handling: Sets the event aside; None if the iterator has no folder, which is refused.
        event: The event.
        errors: The exceptions after which it is set aside.
        start: Begins a call in a thread, for `async with`.
    """

    def __init__(
        self,
        handling: Handling | None,
        event: ChangeEvent,
        errors: tuple[type[Exception], ...],
        start: Callable[..., Any] | None = None,
    ) -> None:
        check_type("event", event, ChangeEvent)
        given: tuple[object, ...] = errors
        for each in given:
            if not (isinstance(each, type) and issubclass(each, Exception)):
                raise invalid_request(
                    "errors",
                    f"has {type_name(each)}, which is no class of exceptions",
                    "pass ValueError, say",
                )
        if handling is None:
            raise invalid_request(
                "handling", "needs a folder for what fails", 'pass set_aside="FOLDER" to the iterator'
            )
        self._handling, self._event, self._start = handling, event, start
        self._errors: tuple[type[Exception], ...] = errors or (Exception,)

    def __enter__(self) -> ChangeEvent:
        if self._start is not None:
            raise invalid_request("handling", "is entered with with", "write async with")
        return self._event

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._errors):
            return False
        self._handling.failed(self._event, error)
        return True

    async def __aenter__(self) -> ChangeEvent:
        if self._start is None:
            raise invalid_request("handling", "is entered with async with", "write with")
        return self._event

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, self._errors):
            return False
        assert self._start is not None
        await self._start(self._handling.failed, self._event, error)
        return True
