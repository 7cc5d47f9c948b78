"""Makes events and Arrow batches from the columns that a provider delivers, and finds a damaged record.

A provider turns its raw records into values, order keys, ids and times. Everything else is the same for all
providers, and is written here once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, TypeVar

import attrs
from attrs import frozen

from multiclouddb_api import ChangeEvent, MulticloudDbError, MulticloudDbKey, ResourceAddress, encode_json
from multiclouddb_api.event import trusted_events
from multiclouddb_spi.batch import Mapper
from multiclouddb_spi.faults import RecordFault, key_digest

if TYPE_CHECKING:
    import pyarrow as pa

_Made = TypeVar("_Made")

DAMAGED: Final = (
    ValueError,
    LookupError,
    TypeError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    RecursionError,
    OSError,  # a time that the platform cannot represent
    MulticloudDbError,  # JSON that is not what `encode_json` writes
)
"""The exceptions that mapping a damaged record can raise."""

Column: TypeAlias = Iterable[Any]
"""One value for each record, in the order of the records.

`itertools.repeat` stands for one value that all records share, and costs nothing. An Arrow array is taken as
it is; only columns for Arrow may be one.
"""


@frozen
class View:
    """What a reader wants of its records, and what all its events share.

    A provider derives its own class if its events share more.

    Attributes:
        address: The address of the documents. If each event names a collection of its own, its collection is
            None, and `Columns.addresses` has the addresses.
        partition_id: The public id of the partition.
        with_new: True if events include the new document.
        with_old: True if events include the old document.
        native: True if events include the service's own record.
    """

    address: ResourceAddress
    partition_id: str
    with_new: bool = attrs.field(default=True, kw_only=True)
    with_old: bool = attrs.field(default=False, kw_only=True)
    native: bool = attrs.field(default=False, kw_only=True)


@frozen(eq=False, repr=False)
class Columns:
    """What a provider found in some records.

    Keys and documents have one of two forms: for events, keys are `MulticloudDbKey` and documents are
    mappings; for Arrow, both are the JSON text that `multiclouddb_api.encode_json` writes.

    Attributes:
        event_ids: The ids of the changes.
        keys: The keys.
        types: The types of the changes, as `ChangeType` (for Arrow also as its text).
        timestamps: The commit times, as aware datetimes in UTC.
        order_keys: The order keys.
        new_states: The documents after the changes; without it, all are None.
        old_states: The documents before the changes; without it, all are None.
        by_expiry: Whether the deletes are by time-to-live; without it, none is.
        backfilled: Whether the events come from the current state of documents; without it, none does.
        addresses: The addresses of the documents, for Arrow as two columns: the names of the databases, and
            those of the collections. Without it, all have the address of the view.
        natives: The service's own records, which Arrow does not contain; without it, all are None.
    """

    event_ids: Column
    keys: Column
    types: Column
    timestamps: Column
    order_keys: Column
    new_states: Column = repeat(None)  # noqa: RUF009 - it has no state
    old_states: Column = repeat(None)  # noqa: RUF009
    by_expiry: Column = repeat(False)  # noqa: RUF009
    backfilled: Column = repeat(False)  # noqa: RUF009
    addresses: Iterable[Any] | None = None
    natives: Column = repeat(None)  # noqa: RUF009


class ColumnMapper(Mapper):
    """Maps records by column. A provider only says what the columns are, and what is wrong with a record."""

    view: View
    damaged: ClassVar[tuple[type[Exception], ...]] = DAMAGED
    """The exceptions that mapping a damaged record can raise, with those of the vendor's library."""

    @abstractmethod
    def columns(self, records: Any, start: int, stop: int, *, texts: bool) -> Columns | None:
        """Return the columns of the records from `start` to `stop`.

        It is called when these records are delivered, and may be called repeatedly for the same records.

        Args:
            records: The records of the batch.
            start: The index of the first record.
            stop: The index after the last record.
            texts: False for events. True for Arrow, which needs keys and documents as JSON text.

        Returns:
            The columns. With `texts`, also None if the provider has no code for Arrow; the engine then makes
            Arrow from events.

        Raises:
            Exception: One of `damaged`, raised here or by an iterable in a column, if a record is damaged.
        """

    @abstractmethod
    def fault(self, records: Any, index: int, error: Exception | None) -> RecordFault:
        """Describe a record that cannot be decoded; see `reason_of`.

        Args:
            records: The records of the batch.
            index: The index of the record.
            error: The exception that the record raises alone. None if each record alone can be mapped, but
                not all together.
        """

    def named(self, position: str, key: Callable[[], MulticloudDbKey]) -> str:
        """Return the position of a record that cannot be decoded, with the name of its key if that can be.

        Args:
            position: The position, as readable text.
            key: Returns the key, or raises one of `damaged`.
        """
        try:
            return f"{position}, key {key_digest(encode_json(key().components).decode())}"
        except self.damaged:
            return position

    def events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        """Map the `records` from `start` to `stop` (exclusive) to events; see `Mapper.events`."""
        return self._mapped(self._events, records, start, stop) if start < stop else []

    def arrow(self, records: Any, start: int, stop: int) -> pa.RecordBatch | None:
        """Map the `records` from `start` to `stop` (exclusive) to Arrow; see `Mapper.arrow`."""
        if start < stop:
            return self._mapped(self._arrow, records, start, stop)
        from multiclouddb_api.arrow import events_to_arrow

        return events_to_arrow([])

    def _events(self, records: Any, start: int, stop: int) -> list[ChangeEvent]:
        found = self.columns(records, start, stop, texts=False)
        assert found is not None
        view = self.view
        return trusted_events(
            stop - start,
            (
                found.event_ids,
                found.keys,
                found.types,
                found.timestamps,
                found.new_states,
                found.old_states,
                found.order_keys,
                found.by_expiry,
                found.backfilled,
                repeat(view.address) if found.addresses is None else found.addresses,
                repeat(view.partition_id),
                found.natives,
            ),
        )

    def _arrow(self, records: Any, start: int, stop: int) -> pa.RecordBatch | None:
        found = self.columns(records, start, stop, texts=True)
        if found is None:
            return None
        from multiclouddb_api.arrow import batch_of

        address = self.view.address
        return batch_of(
            stop - start,
            (
                found.event_ids,
                found.types,
                found.keys,
                found.timestamps,
                found.new_states,
                found.old_states,
                found.order_keys,
                found.by_expiry,
                found.backfilled,
                *(found.addresses or (repeat(address.database), repeat(address.collection))),
                repeat(self.view.partition_id),
            ),
        )

    def _mapped(self, make: Callable[[Any, int, int], _Made], records: Any, start: int, stop: int) -> _Made:
        """Map records; if that fails, map each alone, and raise the fault of the first that fails."""
        try:
            return make(records, start, stop)
        except self.damaged:
            pass
        for index in range(start, stop):
            try:
                make(records, index, index + 1)
            except self.damaged as error:
                raise self.fault(records, index, error) from None
        raise self.fault(records, start, None)


def reason_of(error: Exception | None) -> str:
    """Return why a record cannot be decoded, without its content: the `error` of `ColumnMapper.fault`."""
    return "it is not clear which one is damaged" if error is None else type(error).__name__
