"""Tests calls of an opened feed that reading pages does not make in a predictable order."""

from contextlib import contextmanager

import pytest
from google.protobuf.struct_pb2 import ListValue, Value

from multiclouddb_api import ClientConfig
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spanner.records import Shapes, parse_rows
from multiclouddb_spi import Deadline, FeedSpec

from .test_scripted_attacks import feed

COLUMNS = [["id", '{"code":"STRING"}', True, "1"], ["n", '{"code":"INT64"}', False, "2"]]
MODS = [['{"id":"a"}', '{"n":"1"}', "{}"]]
FIELDS = [
    "2026-01-31T12:00:00.5Z", "00000000", "tx", True, "items", COLUMNS, MODS, "INSERT", "NEW_ROW", "1", "1",
    "", False,
]  # fmt: skip


def to_value(value):
    """Convert a value in the form of JSON to protobuf, as an answer contains it."""
    if isinstance(value, list):
        return Value(list_value=ListValue(values=map(to_value, value)))
    return Value(bool_value=value) if isinstance(value, bool) else Value(string_value=value)


@contextmanager
def opened(items):
    provider = PLUGIN.connect(ClientConfig("spanner", {"url": items.scripted.url}), None)
    try:
        yield provider.open_feed(FeedSpec(items.address), Deadline.after(20))
    finally:
        provider.close()


class TestCompare:
    def test_a_segment_of_a_snapshot_is_comparable_with_itself_only(self):
        with feed() as items, opened(items) as made:
            plan = made.snapshot(None, Deadline.after(20))
            (segment,), _ = made.segments(plan.cursor, 1, Deadline.after(20))
            position = plan.seeds[0].cursor
            assert made.compare(segment.cursor, segment.cursor) == made.compare(position, position) == 0
            assert made.compare(segment.cursor, position) is None
            assert made.compare(position, segment.cursor) is None


class TestNewerService:
    """A service whose answers contain more fields than this version knows."""

    @pytest.mark.parametrize("more", [[], ["new"], ["new", [["x"]]]], ids=len)
    def test_a_record_with_further_fields_is_read(self, more):
        row = to_value([[[[*FIELDS, *more]], [], []]])
        (item,) = [*parse_rows([[row]], "items", Shapes())]
        assert (item.commit, item.transaction, item.kind, len(item.mods)) == (FIELDS[0], "tx", "INSERT", 1)
        assert item.native()["commit_timestamp"] == FIELDS[0]
