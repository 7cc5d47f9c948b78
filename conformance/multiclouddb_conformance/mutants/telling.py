"""Mutants that report wrong events, watermarks, pages and errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta, timezone

import attrs

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedPage,
    ChangeFeedRequest,
    ErrorDetail,
    MulticloudDbError,
    OperationOptions,
)
from multiclouddb_conformance.delegating import WrappedReader
from multiclouddb_conformance.mutants.mutant import Mutant, changed
from multiclouddb_spi import Batch, Deadline, Provider

_Read = Callable[[ChangeFeedRequest, OperationOptions], ChangeFeedPage]


class _ChangesEvents(Mutant):
    """The base class of mutants that change events."""

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        return changed(batch, self.events)

    def events(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        return events


class RepeatsEventUnderNewId(_ChangesEvents):
    """A redelivered event has another id."""

    caught_by = (
        "TestCheckpoint::test_a_token_read_twice_gives_the_same",
        "TestEventIdentity::test_a_redelivered_event_is_the_same_in_every_field",
    )

    def __init__(self, inner: Provider) -> None:
        super().__init__(inner)
        self._count = itertools.count()

    def events(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        return [attrs.evolve(event, event_id=f"{event.event_id}-{next(self._count)}") for event in events]


class SwapsTwoEventsOfKey(_ChangesEvents):
    """Events of one batch come in the wrong order."""

    caught_by = (
        "TestPropagation::test_every_version_of_a_document_arrives_in_order",
        "TestPropagation::test_an_update_arrives_with_the_whole_new_document",
    )

    def events(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        return events[::-1]


class LocalTime(_ChangesEvents):
    """Timestamps are in a local time zone."""

    caught_by = ("TestEventIdentity::test_timestamps_are_aware_and_utc",)

    def events(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        zone = timezone(timedelta(hours=5, minutes=45))
        return [attrs.evolve(event, timestamp=event.timestamp.astimezone(zone)) for event in events]


class OrderKeysOfDifferentLength(_ChangesEvents):
    """Order keys are numbers without leading zeros, which do not sort as text."""

    caught_by = ("TestEventIdentity::test_of_two_changes_of_a_key_the_later_sorts_higher",)

    def events(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        return [attrs.evolve(event, order_key=event.event_id) for event in events]


class DeletesWithDocument(_ChangesEvents):
    """A delete returns the deleted document as its new document."""

    caught_by = ("TestPropagation::test_a_delete_arrives_without_a_document",)

    def events(self, events: list[ChangeEvent]) -> list[ChangeEvent]:
        return [attrs.evolve(event, new_item_state=event.new_item_state or {"n": 0}) for event in events]


class WatermarkRunsAhead(Mutant):
    """The watermark is later than the times of events that follow."""

    caught_by = ("TestWatermark::test_no_later_event_is_older[3]",)

    def fetch(
        self, reader: WrappedReader, max_records: int, max_bytes: int, wait: float, deadline: Deadline
    ) -> Batch:
        batch = super().fetch(reader, max_records, max_bytes, wait, deadline)
        mark = batch.watermark
        return attrs.evolve(batch, watermark=mark and mark + timedelta(hours=1))


class _ChangesPages(Mutant):
    """The base class of mutants that change pages."""

    def __init__(self, inner: Provider) -> None:
        super().__init__(inner)
        self._pages = itertools.count()

    def answer(self, read: _Read, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        return self.page(read(request, options), next(self._pages))

    def page(self, page: ChangeFeedPage, number: int) -> ChangeFeedPage:
        del number
        return page


class WatermarkGoesBack(_ChangesPages):
    """The watermark of a page comes only from the partition that was read last."""

    caught_by = ("TestWatermark::test_it_never_goes_back",)

    def page(self, page: ChangeFeedPage, number: int) -> ChangeFeedPage:
        mark = page.diagnostics.watermark
        if mark is None or number % 2 == 0:
            return page
        diagnostics = attrs.evolve(page.diagnostics, watermark=mark - timedelta(minutes=1))
        return attrs.evolve(page, diagnostics=diagnostics)


class PagesTooLong(Mutant):
    """The limit on the number of events per page is ignored."""

    caught_by = ("TestPageSize::test_no_page_is_longer[2]",)

    def answer(self, read: _Read, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        size = request.max_page_size
        return read(attrs.evolve(request, max_page_size=size + 1 if size else 0), options)


class _UnpicklableError(MulticloudDbError):
    def __init__(self, message: str, *, detail: ErrorDetail) -> None:
        super().__init__(message, detail)


class ErrorThatDoesNotPickle(Mutant):
    """Errors have a class that cannot be unpickled."""

    caught_by = ("TestPickling::test_errors_do",)

    def error(self, error: MulticloudDbError) -> MulticloudDbError:
        return _UnpicklableError(error.message, detail=error.detail)


class SecretInMessage(Mutant):
    """Errors contain the client's configuration, which may include secrets."""

    caught_by = ("TestSecrets::test_what_a_client_connects_with_is_in_no_repr_message_or_log",)

    def error(self, error: MulticloudDbError) -> MulticloudDbError:
        shown = ", ".join(str(value) for value in self.config.connection.values())
        return MulticloudDbError(f"{error.message}, with {shown}", error.detail)


class WasReadFurther(Mutant):
    """`read_until` is later than the moment before which every change was returned."""

    caught_by = ("TestReadUntil::test_no_earlier_change_comes_later[3]",)

    def answer(self, read: _Read, request: ChangeFeedRequest, options: OperationOptions) -> ChangeFeedPage:
        page = read(request, options)
        if (until := page.diagnostics.read_until) is None:
            return page
        told = attrs.evolve(page.diagnostics, read_until=until + timedelta(hours=1))
        return attrs.evolve(page, diagnostics=told)
