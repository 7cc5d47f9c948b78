"""Tests reads of one segment with a scripted cursor."""

import contextlib
from collections import deque
from types import SimpleNamespace

import attrs
import bson
import pytest
from pymongo.errors import AutoReconnect

from multiclouddb_api import ResourceAddress
from multiclouddb_mongo.mapping import View
from multiclouddb_mongo.rows import RawRow, RowMapper
from multiclouddb_mongo.scan_position import Range, range_of
from multiclouddb_mongo.snapshots import SegmentReader
from multiclouddb_spi import Continue, Deadline, ProviderFault, Scanned

PLACE = Range("6500000000000001", "0" * 32)


class Row(RawRow):
    """A row that calls a function when its bytes are read."""

    __slots__ = ("at_read",)

    @property
    def _bytes(self):
        self.at_read()
        return bson.encode({"_id": 1})

    @_bytes.setter
    def _bytes(self, value):
        pass


class Cursor:
    """Simulates the part of the driver's cursor that a reader uses. It returns one row in each answer."""

    def __init__(self, answers, at_answer, at_read):
        self.alive, self._left, self._at_answer, self._at_read = True, answers, at_answer, at_read

    def __next__(self):
        self._left -= 1
        self.alive = bool(self._left)
        self._at_answer()
        row = Row(b"")
        row.at_read = self._at_read
        return row


class Source:
    """Simulates the part of a scanned collection that a reader uses."""

    bounded = True
    begin = calm = be_patient = staticmethod(lambda *_: None)
    client = SimpleNamespace(options=SimpleNamespace(retry_reads=True))

    def __init__(self, answers=2):
        self.answers, self.opened = answers, 0
        self.at_answer = self.at_read = lambda: None

    def at_work(self):
        return contextlib.nullcontext()

    opening = at_work

    def session(self, place):
        return None

    def rows(self, place, session, batch_size):
        self.opened += 1
        return Cursor(self.answers, lambda: self.at_answer(), lambda: self.at_read())

    def close(self, cursor):
        cursor.alive = False

    def gone(self, place):
        return None


def reader_of(source):
    view = View(ResourceAddress("shop", "orders"), "p")
    return SegmentReader(source, view, "0" * 12, PLACE, lambda: None)


def fetch(reader):
    return reader.fetch(10, 1 << 20, 0.0, Deadline.after(30))


class TestCancelled:
    """Tests that a cursor which `cancel` closes is not taken for one whose rows were all read."""

    def test_while_the_server_answers(self):
        source = Source()
        reader = reader_of(source)
        source.at_answer = reader.cancel
        with pytest.raises(ProviderFault, match="cancelled"):
            fetch(reader)

    def test_while_the_answer_is_processed(self):
        source = Source()
        reader = reader_of(source)
        source.at_read = reader.cancel
        batch = fetch(reader)
        assert (len(batch), batch.outcome) == (1, Continue())

    def test_the_last_answer_ends_the_segment(self):
        assert isinstance(fetch(reader_of(Source(answers=1))).outcome, Scanned)


class TestLost:
    """Tests the number of tries. PyMongo has already retried a `find`, but not a `getMore`."""

    def test_a_cursor_that_cannot_be_opened_is_not_opened_again(self):
        source = Source()
        source.at_answer = failing(AutoReconnect("away"), None)
        with pytest.raises(AutoReconnect):
            fetch(reader_of(source))
        assert source.opened == 1

    def test_a_cursor_that_is_lost_is_opened_again_once(self):
        source = Source(answers=3)
        source.at_answer = failing(
            None, AutoReconnect("away"), None, AutoReconnect("one"), AutoReconnect("two")
        )
        reader = reader_of(source)
        assert len(fetch(reader)) == len(fetch(reader)) == 1
        assert source.opened == 2
        with pytest.raises(AutoReconnect, match="two"):
            fetch(reader)
        assert source.opened == 3


def test_of_documents_with_one_id_only_those_that_were_read_are_left_out():
    """Documents on several shards may have the same `_id`."""
    rows = [bson.encode({"_id": 1, "region": number}) for number in range(4)]
    view, place = View(ResourceAddress("shop", "orders"), "p"), attrs.evolve(PLACE, names=("region",))
    for number in range(4):
        mapper = RowMapper(view, "0" * 12, place)
        left = mapper.unread(place, rows)
        assert left == rows[number:]
        place = range_of(mapper.cursor_after(left, 1))
    assert mapper.unread(place, rows) == []


def failing(*failures):
    """Return a function that raises the given errors, one in each call; None raises nothing."""
    left = deque(failures)

    def fail():
        failure = left.popleft()
        if failure is not None:
            raise failure

    return fail
