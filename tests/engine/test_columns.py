"""Tests that a provider's columns become events and Arrow, and that the first damaged record is named."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import repeat
from typing import Any

import pyarrow as pa
import pytest
from attrs import frozen

from multiclouddb_api import (
    ChangeType,
    MulticloudDbError,
    MulticloudDbKey,
    ResourceAddress,
    encode_json,
    invalid_request,
)
from multiclouddb_api.arrow import EVENT_SCHEMA, events_to_arrow
from multiclouddb_spi import DAMAGED, ColumnMapper, Columns, Cursor, RecordFault, View, reason_of

HERE = ResourceAddress("shop", "orders")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
VIEW = View(HERE, "p0")
UNCLEAR = "it is not clear which one is damaged"


@frozen
class NumberMapper(ColumnMapper):
    """Maps numbers; a record that is an exception cannot be decoded and raises it."""

    view: View = VIEW
    more: Any = None  # further columns
    has_arrow: bool = True
    together: bool = True  # False if only one record at a time can be mapped

    def cursor_after(self, records: Sequence[Any], count: int) -> Cursor:
        return count

    def columns(self, records: Sequence[Any], start: int, stop: int, *, texts: bool) -> Columns | None:
        if texts and not self.has_arrow:
            return None
        if not self.together and stop - start > 1:
            raise ValueError
        part = records[start:stop]
        documents = [{"n": record} if isinstance(record, int) else record for record in part]
        form = encode_json if texts else dict
        more = self.more(part) if self.more else {}
        if texts and "addresses" in more:
            names = [(each.database, each.collection) for each in more["addresses"]]
            more["addresses"] = list(zip(*names, strict=True))
        return Columns(
            [f"id-{record}" for record in part],
            [encode_json({"n": n}) if texts else MulticloudDbKey({"n": n}) for n in range(start, stop)],
            **{
                "types": [ChangeType.UPDATE] * len(part),
                "timestamps": [NOON] * len(part),
                "order_keys": [f"{number:03}" for number in range(start, stop)],
                "new_states": self._forms(documents, form),
                **more,
            },
        )

    def _forms(self, documents: Iterable[Any], form: Any) -> Iterable[Any]:
        for document in documents:
            if isinstance(document, Exception):
                raise document
            yield form(document)

    def fault(self, records: Sequence[Any], index: int, error: Exception | None) -> RecordFault:
        return RecordFault(index, f"number {index}", reason_of(error), index + 1)


MORE = {
    "nothing": None,
    "shared": lambda part: {
        "types": repeat(ChangeType.CREATE),
        "timestamps": repeat(NOON),
        "order_keys": repeat("floor"),
        "new_states": repeat(None),
        "backfilled": repeat(True),
        "by_expiry": repeat(None),
    },
    "of each": lambda part: {
        "old_states": [None for _ in part],
        "by_expiry": [record % 2 == 0 for record in part],
        "backfilled": [True for _ in part],
        "addresses": [ResourceAddress("shop", f"c-{record}") for record in part],
        "natives": [f"raw-{record}" for record in part],
    },
}


@pytest.mark.parametrize("more", MORE)
@pytest.mark.parametrize(("start", "stop"), [(0, 3), (1, 3), (2, 2)])
def test_events_and_arrow_say_the_same(more: str, start: int, stop: int):
    mapper, records = NumberMapper(more=MORE[more]), [5, 6, 7]
    events, batch = mapper.events(records, start, stop), mapper.arrow(records, start, stop)
    assert batch is not None
    batch.validate(full=True)
    assert batch.equals(events_to_arrow(events))
    assert [event.event_id for event in events] == [f"id-{record}" for record in records[start:stop]]
    assert {event.partition_id for event in events} <= {"p0"}
    natives = [f"raw-{record}" for record in records[start:stop]]
    assert [event.native for event in events] == (natives if more == "of each" else [None] * (stop - start))
    if more != "of each":
        assert {event.address for event in events} <= {HERE}


def test_an_arrow_column_is_taken_as_it_is():
    column = pa.array(["a", "b", None])
    batch = NumberMapper(more=lambda part: {"order_keys": column}).arrow([5, 6, 7], 0, 3)
    assert batch is not None
    assert batch.schema == EVENT_SCHEMA
    taken = batch.column("order_key")
    assert [each and each.address for each in taken.buffers()] == [
        each and each.address for each in column.buffers()
    ]


@pytest.mark.parametrize("way", ["events", "arrow"])
@pytest.mark.parametrize("kind", DAMAGED, ids=lambda kind: kind.__name__)
def test_the_first_damaged_record_of_the_part_is_named(way: str, kind: Any):
    error = invalid_request("it", "is bad", "mend it") if kind is MulticloudDbError else kind("secret")
    records = [error, 1, error, 2, error]
    with pytest.raises(RecordFault) as caught:
        getattr(NumberMapper(), way)(records, 1, 5)
    fault = caught.value
    assert (fault.index, fault.position, fault.reason) == (2, "number 2", kind.__name__)
    assert fault.skip_cursor == 3
    assert fault.__suppress_context__  # a traceback would show the record


@pytest.mark.parametrize("way", ["events", "arrow"])
def test_a_fault_of_no_single_record_is_said_to_be_unclear(way: str):
    mapper = NumberMapper(together=False)
    assert len(getattr(mapper, way)([1, 2], 1, 2)) == 1
    with pytest.raises(RecordFault) as caught:
        getattr(mapper, way)([1, 2, 3], 1, 3)
    assert (caught.value.index, caught.value.reason) == (1, UNCLEAR)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_no_record_is_asked_for_a_part_without_records(place: int):
    """A fault would name a record that is not in the part, and skipping it would lose that record."""

    class Refusing(NumberMapper):
        def columns(self, records: Sequence[Any], start: int, stop: int, *, texts: bool) -> Columns | None:
            raise ValueError

    records = [ValueError("secret"), 1]
    assert Refusing().events(records, place, place) == []
    batch = Refusing().arrow(records, place, place)
    assert batch is not None
    assert (batch.schema, batch.num_rows) == (EVENT_SCHEMA, 0)


@pytest.mark.parametrize("way", ["events", "arrow"])
def test_a_defect_is_no_damage(way: str):
    with pytest.raises(RuntimeError, match="defect"):
        getattr(NumberMapper(), way)([1, RuntimeError("defect")], 0, 2)


@pytest.mark.parametrize("way", ["events", "arrow"])
def test_a_column_of_the_wrong_length_is_refused(way: str):
    mapper = NumberMapper(more=lambda part: {"order_keys": ["x"] * (len(part) - 1)})
    with pytest.raises(RecordFault, match=r"ValueError"):
        getattr(mapper, way)([1, 2, 3], 0, 3)


def test_a_provider_without_code_for_arrow_says_so():
    mapper = NumberMapper(has_arrow=False)
    assert mapper.arrow([1], 0, 1) is None
    assert len(mapper.events([1], 0, 1)) == 1
