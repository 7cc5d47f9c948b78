"""Sets aside what a table refuses, and tries it again.

The order makes sure that nothing is lost: the files are on the disk before the position moves past their
changes. A process that is killed before that reads the page again, and writes the same files again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import attrs

from multiclouddb_api import (
    BackfillDone,
    ChangeEvent,
    ChangeFeedPage,
    ChangeType,
    ErrorCategory,
    ErrorReason,
    Gap,
    MulticloudDbClient,
    MulticloudDbError,
    MulticloudDbKey,
    NotKnown,
    ProviderOptions,
    RecordSkipped,
    ResourceAddress,
    SnapshotStarted,
    encode_json,
    invalid_request,
)
from multiclouddb_api.set_aside import SetAside, SetAsideFolder
from multiclouddb_mirror.advice import advised
from multiclouddb_mirror.destinations import Destination, How, MergedRows
from multiclouddb_spi.faults import without_data
from multiclouddb_tables.batch import is_of_scan, plan_of
from multiclouddb_tables.contract import Fix
from multiclouddb_tables.layout import NO_ORDER
from multiclouddb_tables.mark import Expected, FeedSource

if TYPE_CHECKING:
    from multiclouddb_verify import Report

__all__ = ["RetryReport", "Setter", "retry_set_aside"]

_OF_A_ROW: Final = frozenset({ErrorCategory.INVALID_REQUEST, ErrorCategory.PROVIDER_ERROR})
"""The errors that a table may have with one row and not with others."""


class Setter:
    """Merges pages, and sets aside what the table refuses.

    Args:
        table: The table.
        address: The collection.
        folder: The folder of the records.
        documents: True to keep documents too.
    """

    def __init__(
        self, table: Destination, address: ResourceAddress, folder: SetAsideFolder, *, documents: bool
    ) -> None:
        self._table, self._address, self._folder = table, address, folder
        self._documents = documents
        self._before: dict[str, set[str]] = {}
        """By scan, what was set aside before it began."""

    def records(self) -> list[SetAside]:
        """Return what is set aside of the table."""
        return self._folder.records(self._address, self._table.name)

    def count(self) -> int:
        """Return how many rows the table lacks."""
        return rows_of(self.records())

    def noted(self, proof: Report) -> Report:
        """Return a proof whose differences say which rows are set aside, and where.

        Args:
            proof: What the comparison has found.
        """
        keys = {_key_text(each.key) for each in self.records() if each.key is not None}
        differences = tuple(
            attrs.evolve(each, note=f"set aside in {self._folder.path}") if each.key in keys else each
            for each in proof.differences
        )
        return attrs.evolve(proof, differences=differences)

    def forget(self, records: Sequence[SetAside]) -> None:
        """Remove records, because a proof has found that the table lacks nothing.

        Args:
            records: What was set aside before the proof began.
        """
        for each in records:
            self._folder.remove(each)

    def merge(self, page: ChangeFeedPage, how: How) -> MergedRows:
        """Merge a page without what the table refuses, and count what was merged.

        When a copy of every row ends with the page, older records are removed, because the table has now what
        they lacked.

        Args:
            page: The page.
            how: How it is merged.

        Raises:
            MulticloudDbError: That of the table, if it is about no single row.
        """
        for notice in page.notices:
            if isinstance(notice, SnapshotStarted) and notice.whole:
                self._before[notice.partition_id] = {each.name for each in self.records()}
        merged = self._merge(page, how)
        for notice in page.notices:
            if isinstance(notice, BackfillDone):
                self._forget_copied(notice)
        return merged

    def _forget_copied(self, copied: BackfillDone) -> None:
        """Remove what was set aside before a copy, apart from the rows that the copy has set aside again.

        A change that is older than the floor is older than the copy. Where the floor is low, as on DynamoDB,
        or a record has no key, only the run that has begun the copy knows what is older.
        """
        records, before = self.records(), self._before.pop(copied.partition_id, set[str]())
        plan = plan_of(copied.partition_id)
        if plan is None:  # the backfill of one partition
            return
        again = {each.key for each in records if plan_of(each.partition_id) == plan}
        for each in records:
            is_older = each.name in before or (each.order_key or copied.floor) < copied.floor
            if is_older and each.key not in again:
                self._folder.remove(each)

    def _merge(self, page: ChangeFeedPage, how: How) -> MergedRows:
        # A row of a scan that cannot be decoded has no key, so the sink refuses its page, and the job stops.
        skipped = [
            SetAside.of_notice(each, self._address, self._table.name)
            for each in page.notices
            if isinstance(each, RecordSkipped) and not is_of_scan(each)
        ]
        page = self._set_aside(skipped, page, how)
        try:
            return self._table.merge_counted(page, how)
        except MulticloudDbError as error:
            if not _is_of_a_row(error) or not page.events:
                raise
        # The page without rows shows whether it is about the rows; the scan may end only after them.
        begins = tuple(each for each in page.notices if not isinstance(each, BackfillDone))
        self._table.merge_alone(attrs.evolve(page, events=(), notices=begins), **how)
        everything = self._refused(page, page.events, how)
        # The event with which the key of a refused one is over; the table lacks nothing of it then.
        over = {event.key: event.order_key for event, error in everything if self._lacks_none(event, error)}
        refused = [(event, error) for event, error in everything if event.order_key > over.get(event.key, "")]
        if refused and len(everything) == len(page.events):
            # The reason may be the table, and then it also refuses to be marked as incomplete, which it is
            # without these rows.
            first = refused[0][0]
            gap = Gap(first.partition_id, first.order_key, first.order_key)
            self._table.merge_alone(attrs.evolve(page, events=(), notices=(gap,)), **how)
        for event, _ in refused:
            if event.backfilled:
                self._keep(page, event, how)
        records = [
            SetAside.of_event(
                event, self._address, self._table.name, without_data(advised(error).message),
                documents=self._documents,
            )
            for event, error in refused
        ]  # fmt: skip
        page = self._set_aside(records, page, how)
        if over:
            for each in self.records():
                if each.key in over and (each.order_key or "") <= over[each.key]:
                    self._folder.remove(each)
        ids = {event.event_id for event, _ in everything}
        left = tuple(event for event in page.events if event.event_id not in ids)
        return self._table.merge_counted(attrs.evolve(page, events=left), how)

    def _lacks_none(self, event: ChangeEvent, error: MulticloudDbError) -> bool:
        """Return whether it is a delete of a row that the table neither has nor can have."""
        if event.type is not ChangeType.DELETE or error.reason != ErrorReason.LONG_KEY:
            return False
        return not any(batch.num_rows for batch in self._table.target.rows([_text(event)]))

    def _refused(
        self, page: ChangeFeedPage, events: Sequence[ChangeEvent], how: How
    ) -> list[tuple[ChangeEvent, MulticloudDbError]]:
        """Merge some of the events of a page, and return those that the table refuses."""
        try:
            self._table.merge_alone(attrs.evolve(page, events=tuple(events), notices=()), **how)
        except MulticloudDbError as error:
            if not _is_of_a_row(error):
                raise
            if len(events) == 1:
                return [(events[0], error)]
            middle = len(events) // 2
            return [
                *self._refused(page, events[:middle], how),
                *self._refused(page, events[middle:], how),
            ]
        return []

    def _keep(self, page: ChangeFeedPage, event: ChangeEvent, how: How) -> None:
        """Keep the row of a document that a scan has read, or the end of the scan would bury it."""
        [*rows] = self._table.target.rows([_text(event)])
        if any(not deleted for batch in rows for deleted in batch.column("deleted").to_pylist()):
            stays = attrs.evolve(event, type=ChangeType.UPDATE, new_item_state=None)
            kept: How = {**how, "missing_state": "keep"}
            self._table.merge_alone(attrs.evolve(page, events=(stays,), notices=()), **kept)

    def _set_aside(self, records: list[SetAside], page: ChangeFeedPage, how: How) -> ChangeFeedPage:
        """Keep records, and return the page with a gap, which marks the table as incomplete."""
        if not records:
            return page
        self._folder.add(records)
        first = records[0]
        gap = Gap(first.partition_id, first.position, first.position)
        if not any(isinstance(each, SnapshotStarted) for each in page.notices):
            return attrs.evolve(page, notices=(*page.notices, gap))
        # Of a page on which a copy begins, a sink takes the gap for what the copy repairs.
        self._table.merge_alone(attrs.evolve(page, events=(), notices=(gap,)), **how)
        return page


def rows_of(records: Sequence[SetAside]) -> int:
    """Return how many rows a table lacks without some records: several may be changes of one key.

    Args:
        records: The records; one that cannot be decoded counts as a row.
    """
    return len({each.name if each.key is None else each.key for each in records})


@attrs.frozen
class RetryReport:
    """What became of the records that were tried again."""

    table: str
    """The name of the table, without secrets."""
    written: int
    """The number of rows that the table has now."""
    newer: int
    """The number of records that were removed, because the table has a newer change of their keys."""
    gone: int
    """The number of records that were removed, because their documents were deleted and the table has no rows
    of them."""
    left: int
    """The number of records that are still set aside."""
    reasons: tuple[str, ...]
    """Why they are."""


class _Retried(Enum):
    """Why a record is not needed any more."""

    WRITTEN = auto()
    NEWER = auto()
    GONE = auto()


def retry_set_aside(
    client: MulticloudDbClient,
    address: ResourceAddress,
    table: Destination,
    folder: SetAsideFolder,
    provider_options: ProviderOptions | None = None,
    on_step: Callable[[], None] | None = None,
) -> RetryReport:
    """Try again to write what was set aside, in the order of the changes.

    The database is asked for the document of each key as it is now, and the table gets it, provided that its
    row is still the one that was seen; so a newer row is never replaced, while a mirror may go on.

    Args:
        client: The client of the source.
        address: The collection.
        table: The table.
        folder: The folder.
        provider_options: The options of the provider.
        on_step: Called before a row is written and before a file is removed.
    """
    counts, reasons = Counter[_Retried](), list[str]()
    for record in folder.records(address, table.name):
        try:
            found = _retried(client, address, table, record, provider_options, on_step)
        except MulticloudDbError as error:
            if error.retryable or error.category not in _OF_A_ROW:
                raise
            reasons.append(without_data(error.message))
            continue
        if isinstance(found, str):
            reasons.append(found)
            continue
        counts[found] += 1
        if on_step is not None:
            on_step()
        folder.remove(record)
    return RetryReport(
        table.name,
        counts[_Retried.WRITTEN],
        counts[_Retried.NEWER],
        counts[_Retried.GONE],
        len(reasons),
        tuple(dict.fromkeys(reasons)),
    )


def _retried(
    client: MulticloudDbClient,
    address: ResourceAddress,
    table: Destination,
    record: SetAside,
    provider_options: ProviderOptions | None,
    on_step: Callable[[], None] | None,
) -> _Retried | str:
    """Write the row of a record; return why the record is not needed any more, or why nothing was done."""
    from multiclouddb_verify.own_columns import DeclaredColumns

    if record.key is None or record.order_key is None:
        return (
            "a record that cannot be decoded has no key to look for; when it can be, or its document was "
            "changed, run the mirror with resync=True and prove=True (--resync --prove), which removes it if "
            "the table is equal"
        )
    found = table.found()
    if found is None:
        raise invalid_request(
            "target", f"{table.name} does not exist", "run the mirror, which copies every row"
        )
    key = _key_text(record.key)
    # The rows are read before the document, so that one that comes later is not replaced.
    orders = [order for batch in table.target.rows([key]) for order in batch.column("order_key").to_pylist()]
    last = max([record.order_key, *(each for each in orders if each != NO_ORDER)])
    if last > record.order_key:
        return _Retried.NEWER
    answer = client.lookup(address, [record.key], provider_options=provider_options)[record.key]
    if isinstance(answer, NotKnown):
        return answer.reason
    document = None if answer is None else answer.new_item_state
    if document is None and not orders:
        return _Retried.GONE
    mark = found.mark
    columns = None
    if mark is not None and mark.declared is not None:
        declared = DeclaredColumns.of(mark.declared, table.name, table.target.columns(), table.target)
        columns = declared.values(key, document)
    text = None if document is None else encode_json(document).decode()
    fix = Fix(key, tuple(orders), last, text, columns, datetime.now(UTC))
    if on_step is not None:
        on_step()
    source = mark.source if mark is not None else FeedSource("", address)
    if not table.target.fix([fix], Expected(source, found)):
        return "the row was written meanwhile; try again"
    return _Retried.WRITTEN


def _is_of_a_row(error: MulticloudDbError) -> bool:
    return error.category in _OF_A_ROW and not error.retryable


def _text(event: ChangeEvent) -> str:
    return _key_text(event.key)


def _key_text(key: MulticloudDbKey) -> str:
    """Return the text that the table has for a key."""
    return encode_json(dict(key.components)).decode()
