"""Tests reads of one stream.

A script decides what the server sends, where answers end, and where the stream breaks.
"""

import contextlib
import copy
import itertools
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import attrs
import bson
import pytest
from bson import Int64
from bson.timestamp import Timestamp
from hypothesis import strategies as st
from pymongo.errors import AutoReconnect, OperationFailure

from multiclouddb_api import Dropped, ErrorCategory, Invalidated, Renamed, ResourceAddress
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo import reader as reader_room
from multiclouddb_mongo.mapping import MongoView
from multiclouddb_mongo.members import Majority, ServerClock
from multiclouddb_mongo.position import After, At, compare, place_of, start_of, ticks_at, token_text
from multiclouddb_mongo.raw_change import RAW_CODEC, RawChange, last_answer
from multiclouddb_mongo.reader import MongoReader
from multiclouddb_mongo.values import CODEC
from multiclouddb_spi import Continue, Deadline, Ended, ProviderFault, Reached, RecordFault

from .fuzz import fuzzed

SECONDS = 1_763_634_171
ADDRESS = ResourceAddress("shop", "orders")
ITEMS = ("insert", "update", "replace", "delete")
OVERTAKEN, TOO_LARGE, NO_IMAGE, EXPIRED, BUSY, UNKNOWN = 136, 10334, 47, 286, 262, 280
TEXTS = {NO_IMAGE: "Change stream was configured to require a post-image for all update events"}
INVALIDATED_TOKEN = 260


def change_text(number, fragment=0):
    return f"82{SECONDS:08X}{number:08X}2B022C01{fragment:02X}04"


def mark_text(number):
    return f"82{SECONDS:08X}{number:08X}2B0229296E04"


def place_after(number, fragment=0):
    return After("e", change_text(number, fragment))


def facts(operation, number):
    stamp = Timestamp(SECONDS, number)
    return {"operationType": operation, "clusterTime": stamp, "ns": {"db": "shop", "coll": "orders"}}


# -- A scripted server


@attrs.define
class Entry:
    """One operation of the oplog."""

    text: str
    change: dict | None
    refused: int | None = None
    closes: bool = False
    said: str = ""

    def is_whole(self):
        """Return True if a reader may resume after this operation, and False in the middle of a change."""
        split = (self.change or {}).get("splitEvent", {"fragment": 1, "of": 1})
        return split["fragment"] == split["of"]


class Log:
    """The operations of the oplog, in order."""

    def __init__(self):
        self.entries = []
        self.numbers = itertools.count(1)

    def add(self, operation="insert", *, shown=True, parts=1, refused=None, said="", closes=False, **more):
        """Add one operation in the given number of parts, and return its number."""
        number = next(self.numbers)
        whole = facts(operation, number)
        if operation in ITEMS:
            whole |= {"documentKey": {"_id": number}, "fullDocument": {"_id": number, "n": "x" * 8}}
        whole |= more
        names = [name for name in whole if name != "operationType"]
        for part in range(parts):
            change = {"_id": {"_data": change_text(number, part)}, "operationType": operation}
            change |= {name: whole[name] for place, name in enumerate(names) if place % parts == part}
            if parts > 1:
                change["splitEvent"] = {"fragment": part + 1, "of": parts}
            ends = closes and part == parts - 1
            shown_change = change if shown else None
            self.entries.append(Entry(change_text(number, part), shown_change, refused, ends, said))
        return number

    def fill(self, count):
        for _ in range(count):
            self.add()
        return self

    def transact(self, keys):
        """Add one transaction. All its changes have the same cluster time."""
        number = next(self.numbers)
        for part, key in enumerate(keys):
            change = {"_id": {"_data": change_text(number, part)}, **facts("insert", number)}
            self.entries.append(Entry(change_text(number, part), change | {"documentKey": {"_id": key}}))

    def keys(self, place=None):
        """Return the keys of all document changes after a position."""
        return [
            int(entry.text[10:18], 16)
            for entry in self.entries[self.index(place) if place else 0 :]
            if entry.change is not None and entry.change["operationType"] in ITEMS and entry.is_whole()
        ]

    def index(self, place):
        """Return the index of the first operation after a position."""
        if isinstance(place, At):
            return sum(int(entry.text[2:18], 16) < ticks_at(place) for entry in self.entries)
        return sum(entry.text <= place.data for entry in self.entries)

    def count(self):
        return len({entry.text[:18] for entry in self.entries})


class Stream:
    """Behaves like the driver's change stream, and returns one answer of the server at a time."""

    def __init__(self, server, place, batch_size, await_ms):
        self.server, self.at = server, server.log.index(place)
        self.batch_size, self.await_ms = batch_size, await_ms
        self.token, self.closed, self.answers = None, False, 0
        self.mark = place.data if isinstance(place, After) else mark_text(0)
        self.data, self.ended = deque(), False
        self._answer()

    def _answer(self):
        """Return the changes that fit in one answer, or raise the error at this place in the script."""
        server, log = self.server, self.server.log
        server.asked += 1
        if server.failures:
            failure = server.failures.popleft()
            if isinstance(failure, BaseException):
                self.closed = isinstance(failure, OperationFailure)
                raise failure
        size = next(server.sizes, self.batch_size) if self.answers or server.eager else 0
        self.answers += 1
        found = []
        while self.at < len(log.entries) and len(found) < min(size, self.batch_size):
            entry = log.entries[self.at]
            is_sent = entry.refused == NO_IMAGE and server.lenient
            if entry.refused is not None and not (server.slim or is_sent):
                self.closed = True
                raise OperationFailure(
                    entry.said or TEXTS.get(entry.refused, "as the script says"), entry.refused
                )
            self.at += 1
            shown = entry.change is not None and not (server.hides and server.hides(entry.change))
            if shown:
                found.append(entry.change | ({"fullDocument": None} if is_sent else {}))
            self.mark = entry.text if shown or entry.closes else mark_text(int(entry.text[10:18], 16))
            if entry.closes:
                self.ended = True
                break
        self.receive("firstBatch" if self.answers == 1 else "nextBatch", found)

    def receive(self, name, found):
        """Decode an answer as the driver does."""
        answer = {name: found, "id": Int64(not self.ended)}
        raw = bson.encode(answer, codec_options=CODEC).replace(b"damaged", b"damage\xff")
        self.data.extend(RawChange(raw, RAW_CODEC)[name])

    @property
    def alive(self):
        return not self.closed

    @property
    def resume_token(self):
        return None if self.token is None else {"_data": self.token}

    def try_next(self):
        data = self.data
        if not data and not self.closed and not self.ended:
            self.server.waits.append(self.await_ms)
            self.server.before_answer()
            self._answer()
        change = data.popleft() if data else None
        if self.ended and not data:
            self.closed = True
        self.token = self.mark if not data else copy.deepcopy(change["_id"])["_data"]
        return change

    def close(self):
        self.closed = True
        self.ended = True
        self.data.clear()


class Secretive(Stream):
    """Simulates the stream of a driver that does not decode its answers with the class of the documents."""

    def receive(self, name, found):
        super().receive(name, found)
        last_answer()


class Server:
    """Simulates the part of a feed that a reader uses: it opens streams on an oplog and remembers them."""

    def __init__(
        self,
        log,
        *,
        splits=False,
        sharded=False,
        stream=Stream,
        sizes=(),
        eager=False,
        failures=(),
        **options,
    ):
        self.log, self.splits, self.sharded, self.stream = log, splits, sharded, stream
        self.closed_at, self.oversized, self.majority = None, lambda _: None, Majority()
        self.majority.has_all()
        self.clock = ServerClock()
        self.address = ResourceAddress("shop", "orders")
        self.options = MongoOptions(**options)
        self.sizes, self.eager, self.failures = iter(sizes), eager, deque(failures)
        self.opened, self.places, self.asked, self.hides = [], [], 0, None
        self.slim = self.lenient = False
        self.waits = []  # how long each answer might be delayed, except the first one of a stream
        self.before_answer = self.at_open = lambda: None

    def open(self, place, batch_size, await_ms, *, slim=False, lenient=False):
        self.places.append(place)
        self.slim, self.lenient = slim, lenient
        stream = self.stream(self, place, batch_size, await_ms)
        self.opened.append(stream)
        self.at_open()
        return stream

    def required(self):
        return ("fullDocument",)

    def close(self, stream):
        stream.close()

    def reach(self, deadline):
        pass

    def wait_next(self, stream, await_ms):
        stream.await_ms = await_ms

    calm = be_patient = staticmethod(lambda: None)
    patience = 60.0

    def is_elsewhere(self, stream):
        return False

    def is_replaced(self, stream):
        return False

    def is_believed(self, stream):
        return True

    def at_work(self):
        return contextlib.nullcontext()

    opening = at_work

    def living(self):
        return [stream for stream in self.opened if not stream.closed]


def reader_of(server, place=None, *, until=None, start=None, goes_on=False, headroom=None, check=None):
    return MongoReader(
        server,
        MongoView(ADDRESS, "p", with_old=True, start=start),
        place or At(0),
        until,
        lambda: goes_on,
        lambda place: headroom,
        check or (lambda: None),
        server.options.batch_size,
    )


def fetch(reader, records=1000, wait=0.0):
    return reader.fetch(records, 1 << 20, wait, Deadline.after(30))


def keys_of(batch):
    return [event.key.components["_id"] for event in batch.events(0, len(batch))]


def batches(reader, records=1000):
    pages = itertools.chain(records, itertools.repeat(records[-1])) if isinstance(records, list) else None
    while True:
        batch = fetch(reader, next(pages) if pages else records)
        yield batch
        if not isinstance(batch.outcome, Continue) or (not len(batch) and batch.caught_up is not False):
            return


def drained(reader, records=1000):
    return [key for batch in batches(reader, records) for key in keys_of(batch)]


@pytest.fixture
def log():
    return Log()


# -- No change is lost or returned twice


@st.composite
def logs(draw):
    """Generate an oplog that contains everything that a stream may send before its end."""
    log = Log()
    kinds = ["change", "parts", "other", "drop", "rename", "unknown"]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=9)):
        match kind:
            case "change":
                log.add(draw(st.sampled_from(ITEMS)))
            case "parts":
                log.add("update", parts=draw(st.integers(2, 4)))
            case "other":
                log.add(shown=False)
            case "drop":
                log.add("drop")
            case "rename":
                log.add("rename", to={"db": "shop", "coll": "other"})
            case "unknown":
                log.add(draw(st.sampled_from(["zzz", "create", ""])))
    return log


sizes = st.lists(st.integers(1, 4), max_size=12)
pages = st.lists(st.integers(1, 4), min_size=1, max_size=6)


class TestNothingLost:
    @fuzzed(logs(), sizes, pages, st.booleans(), st.booleans(), st.sampled_from([Stream, Secretive]))
    def test_every_change_once_however_it_is_cut(self, log, sizes, pages, eager, splits, stream):
        in_parts = any("splitEvent" in (entry.change or {}) for entry in log.entries)
        server = Server(log, splits=splits or in_parts, sizes=sizes, eager=eager, stream=stream)
        expected = log.keys()
        taken = []
        for batch in batches(reader_of(server), pages):
            found = keys_of(batch)
            for count in range(len(found) + 1):
                # Another reader that continues from there gets the rest.
                again = Server(log, splits=server.splits)
                rest = drained(reader_of(again, place_of(batch.cursor_after(count))))
                assert rest == expected[len(taken) + count :]
            taken += found
        assert taken == expected

    @fuzzed(logs(), sizes, pages, st.data())
    def test_a_broken_answer_is_had_again(self, log, sizes, pages, data):
        server = Server(log, splits=True, sizes=sizes)
        reader, taken = reader_of(server), []
        for turn in range(60):
            if turn < 20 and data.draw(st.booleans()):
                server.failures.append(data.draw(st.sampled_from([AutoReconnect("away"), None])))
            try:
                batch = fetch(reader, pages[turn % len(pages)])
            except AutoReconnect:
                reader.close()
                continue
            taken += keys_of(batch)
            if not len(batch) and not batch.notices and not server.failures:
                break
        assert taken == log.keys()

    @fuzzed(logs(), sizes, pages, st.data())
    def test_a_range_is_the_same_whenever_it_is_read(self, log, sizes, pages, data):
        marks = [After("h", mark_text(number)) for number in range(log.count() + 2)]
        ends = [After("e", entry.text) for entry in log.entries if entry.change and entry.is_whole()]
        until = data.draw(st.sampled_from(marks + ends))
        expected = log.keys()[: len(log.keys()) - len(log.keys(until))]
        server = Server(log, splits=True, sizes=sizes)
        found = list(batches(reader_of(server, until=until), pages))
        assert [key for batch in found for key in keys_of(batch)] == expected
        assert isinstance(found[-1].outcome, Reached)
        # A reader of a range has not finished until it reaches the end of the range.
        assert compare(place_of(found[-1].cursor_after(len(found[-1]))), until) != -1
        log.fill(3)
        assert drained(reader_of(Server(log, splits=True, sizes=pages), until=until), pages) == expected

    def test_an_empty_answer_is_no_end_after_later_changes(self, log):
        """A member that lags first has nothing, and then a transaction directly before the bound."""
        log.add(shown=False)
        server = Server(log)
        server.before_answer = lambda: server.asked > 1 and log.count() == 1 and log.transact(range(3))
        reader = reader_of(server, until=After("h", mark_text(3)))
        assert [keys_of(fetch(reader, 1, wait=10.0)) for _ in range(3)] == [[0], [1], [2]]
        assert isinstance(fetch(reader).outcome, Reached)

    def test_a_range_without_changes_asks_for_nothing(self, log):
        server = Server(log.fill(1))
        assert isinstance(fetch(reader_of(server, place_after(1), until=place_after(1))).outcome, Reached)
        assert not server.opened

    def test_a_range_ends_at_a_token_without_a_time(self, log):
        for entry in log.fill(3).entries:
            entry.text = f"83{entry.text[2:]}"
            entry.change["_id"] = {"_data": entry.text}
        until = After("e", log.entries[1].text)
        assert drained(reader_of(Server(log), After("e", "83"), until=until)) == [1, 2]


def test_a_damaged_change_whose_fields_were_moved_is_no_change_that_nobody_wants(log):
    log.add()
    log.add(fullDocument={"n": "damaged"})
    log.add()
    for entry in log.entries:  # as a pipeline may move it
        entry.change["operationType"] = entry.change.pop("operationType")
    batch = fetch(reader_of(Server(log), start=2**63))
    assert len(batch) == 3
    with pytest.raises(RecordFault) as caught:
        batch.events(0, 3)
    assert caught.value.index == 1
    assert start_of(caught.value.skip_cursor) == 2**63


class TestParts:
    """Tests that a change sent in parts is returned as one change, with no position between the parts."""

    @pytest.mark.parametrize(("size", "page"), [(1, 10), (2, 1), (3, 2), (10, 10)])
    def test_it_is_put_together(self, log, size, page):
        log.add()
        log.add("update", parts=3, fullDocumentBeforeChange={"_id": 2, "n": "old"})
        log.add()
        server = Server(log, splits=True, sizes=[size] * 20)
        events = [
            event for batch in batches(reader_of(server), page) for event in batch.events(0, len(batch))
        ]
        assert [event.key.components["_id"] for event in events] == [1, 2, 3]
        assert events[1].new_item_state == {"_id": 2, "n": "x" * 8}
        assert events[1].event_id == change_text(2, 2)

    def test_a_page_that_ends_between_two_parts_has_the_position_in_front_of_them(self, log):
        log.add()
        log.add(parts=2)
        reader = reader_of(Server(log, splits=True, sizes=[2, 1]))
        batch = fetch(reader)
        assert (keys_of(batch), place_of(batch.cursor_after(1))) == ([1], place_after(1))
        assert keys_of(fetch(reader)) == [2]

    def test_a_fetch_that_ends_after_the_first_part_does_not_move(self, log):
        log.add(parts=3)
        later = log.entries[1:]
        del log.entries[1:]
        reader = reader_of(Server(log, splits=True))
        batch = fetch(reader)
        assert (keys_of(batch), place_of(batch.cursor_after(0))) == ([], At(0))
        log.entries.extend(later)
        assert keys_of(fetch(reader)) == [1]

    def test_parts_before_a_failure_are_forgotten(self, log):
        """If the document was made smaller in the meantime, the change comes in one part."""
        log.add(parts=3, fullDocumentBeforeChange={"_id": 1, "n": "old"})
        server = Server(log, splits=True, sizes=[2, 1, 1, 1], failures=[None, None, AutoReconnect("away")])
        reader = reader_of(server)
        with pytest.raises(AutoReconnect):
            fetch(reader)
        whole = {name: value for entry in log.entries for name, value in entry.change.items()}
        del whole["splitEvent"]
        log.entries[:] = [attrs.evolve(log.entries[-1], change=whole)]
        second = log.add(parts=3)
        batch = fetch(reader)
        assert (keys_of(batch), place_of(batch.cursor_after(1))) == ([1], place_after(1, 2))
        batch = fetch(reader)
        assert keys_of(batch) == [second]
        assert [event.old_item_state for event in batch.events(0, 1)] == [None]

    @pytest.mark.parametrize("part", [0, 1, 2], ids=["first", "middle", "last"])
    def test_a_part_that_cannot_be_read_damages_only_its_own_change(self, log, part):
        """The three parts are one poison record, and the next change has nothing of it."""
        log.add(parts=3, fullDocumentBeforeChange={"_id": 1, "n": "old"}, more={"n": "x"})
        damaged = log.entries[part].change
        name = next(name for name in damaged if name not in ("_id", "operationType", "splitEvent"))
        log.entries[part] = attrs.evolve(log.entries[part], change=damaged | {name: {"text": "damaged"}})
        following = [log.add(parts=2), log.add()]
        reader = reader_of(Server(log, splits=True))
        found = fetch(reader)
        with pytest.raises(RecordFault) as caught:
            found.events(0, 1)
        assert place_of(caught.value.skip_cursor) == place_after(1, 2)
        seen = found.events(1, len(found))
        while len(batch := fetch(reader)):
            seen += batch.events(0, len(batch))
        assert [event.key["_id"] for event in seen] == following
        assert [event.old_item_state for event in seen] == [None, None]

    @pytest.mark.parametrize("missing", [1, 2])
    def test_a_change_of_which_parts_are_missing_is_not_delivered(self, log, missing):
        """The application has given the token of a part."""
        log.add(parts=3)
        second = log.add()
        reader = reader_of(Server(log, splits=True), After("r", change_text(1, missing - 1)))
        batch = fetch(reader)
        with pytest.raises(RecordFault) as caught:
            batch.events(0, 1)
        assert place_of(caught.value.skip_cursor) == place_after(1, 2)
        assert [event.key["_id"] for event in batch.events(1, 2)] == [second]


# -- Notices in a stream


class TestOtherOperations:
    def test_what_happened_to_collections_is_told(self, log):
        log.add("drop")
        log.add("rename", to={"db": "shop", "coll": "new"})
        log.add("dropDatabase", ns={"db": "shop"})
        log.add("rename", to=None, ns=None)
        log.add("drop", ns="text")  # as a pipeline may alter it
        reader = reader_of(Server(log))
        told = [fetch(reader) for _ in range(5)]
        assert [notice for batch in told for notice in batch.notices] == [
            Dropped("shop/orders"),
            Renamed("shop/orders", "shop/new"),
            Dropped("shop"),
            Renamed("?/?", "?/?"),
            Dropped("?/?"),
        ]
        assert all((batch.caught_up, len(batch.notices)) == (False, 1) for batch in told)
        assert place_of(told[-1].cursor_after(0)).data >= change_text(5)

    def test_a_long_row_of_it_is_no_end(self, log):
        for _ in range(120):
            log.add("zzz")
        number = log.add()
        first = fetch(reader_of(Server(log, sizes=[1] * 200)))
        assert (len(first), first.caught_up) == (0, False)
        assert place_of(first.cursor_after(0)) == place_after(50)
        assert drained(reader_of(Server(log, sizes=[1] * 200))) == [number]


class Resuming(Stream):
    """PyMongo resumes a stream without a cursor, but the server refuses the token of an invalidate."""

    def try_next(self):
        if self.ended:
            raise OperationFailure("this token is from an invalidate", INVALIDATED_TOKEN)
        return super().try_next()


class TestEnd:
    def ended(self, log, **more):
        log.add()
        log.add("drop")
        log.add("invalidate", closes=True)
        return Server(log, **more)

    def test_a_feed_ends_behind_an_invalidate(self, log):
        server = self.ended(log)
        reader = reader_of(server)
        batch = fetch(reader)
        assert (keys_of(batch), batch.notices) == ([1], (Dropped("shop/orders"),))
        batch = fetch(reader)
        assert isinstance(batch.outcome, Ended)
        assert isinstance(batch.outcome.notice, Invalidated)
        assert place_of(batch.cursor_after(0)) == After("i", change_text(3))
        again = fetch(reader)
        assert (len(again), again.outcome) == (0, batch.outcome)
        assert not server.living()

    def test_a_feed_that_follows_goes_on_there_and_says_so(self, log):
        server = self.ended(log)
        number = log.add()
        reader = reader_of(server, goes_on=True)
        assert [type(notice) for notice in fetch(reader).notices] == [Dropped]
        batch = fetch(reader)
        assert isinstance(batch.outcome, Continue)
        assert [type(notice) for notice in batch.notices] == [Invalidated]
        assert batch.caught_up is False  # the collection that now has this name may be older
        assert drained(reader) == [number]
        assert server.places[-1] == After("i", change_text(3))

    def test_what_ended_before_the_start_was_another(self, log):
        server = self.ended(log)
        number = log.add()
        before, behind = ((SECONDS << 32) + 3, (SECONDS << 32) + 4)
        assert drained(reader_of(server, start=behind)) == [1, number]
        assert drained(reader_of(Server(log), start=before)) == [1]

    @pytest.mark.parametrize("eager", [False, True])
    def test_an_end_that_a_pipeline_hides_is_one(self, log, eager):
        server = self.ended(log, eager=eager, pipeline=[{"$match": {"operationType": "insert"}}])
        server.hides = lambda change: change["operationType"] != "insert"
        found = list(batches(reader_of(server)))
        assert [key for batch in found for key in keys_of(batch)] == [1]
        assert isinstance(found[-1].outcome, Ended)
        assert "pipeline" in found[-1].outcome.notice.reason

    def test_a_stream_that_its_first_answer_closes_is_not_resumed(self, log):
        log.add("invalidate", shown=False, closes=True)
        (batch,) = batches(reader_of(Server(log, stream=Resuming, eager=True)))
        assert isinstance(batch.outcome, Ended)

    def test_a_cancelled_stream_that_the_driver_resumes_is_closed(self, log):
        server = Server(log)
        reader = reader_of(server)

        def resumed():
            reader.cancel()
            (stream,) = server.opened
            stream.closed = stream.ended = False

        server.before_answer = resumed
        with pytest.raises(ProviderFault, match="cancelled"):
            fetch(reader)
        assert not server.living()


class Resumed(Stream):
    """Behaves like a stream that PyMongo resumes for every second answer."""

    def try_next(self):
        if self.answers % 2 and not self.data and not self.closed:
            self.answers += 1
            self.receive("firstBatch", [])
            return None
        return super().try_next()


def test_an_empty_answer_after_a_resume_is_not_the_end(log):
    """The answer to a resume does not show the end of the log."""
    assert keys_of(fetch(reader_of(Server(log.fill(1), stream=Resumed)))) == [1]


class TestAltered:
    """Tests pipelines that alter events. If a required field is missing, the error names the field."""

    @pytest.mark.parametrize("name", ["ns", "documentKey"])
    def test_what_has_become_something_else(self, log, name):
        log.add(**{name: "text"})
        with pytest.raises(ProviderFault, match=name):
            fetch(reader_of(Server(log, pipeline=[{"$set": {name: "text"}}])))

    def test_what_it_may_take_away(self, log):
        log.add()
        change = log.entries[0].change
        del change["clusterTime"], change["fullDocument"]
        log.add("rename")
        batch = fetch(reader_of(Server(log, pipeline=[{"$project": {}}])))
        assert (keys_of(batch), batch.notices) == ([1], (Renamed("shop/orders", "?/?"),))


# -- Changes that a server cannot send


def failing(*codes):
    """Return what a server answers: a failure with this code, or for None what it has."""
    return [code and OperationFailure(str(code), code) for code in codes]


class TestRefused:
    @pytest.mark.parametrize(
        ("before", "eager", "size"), [(0, True, 1), (1, False, 2), (3, True, 2), (3, False, 100)]
    )
    def test_a_change_that_is_too_large_is_named_and_may_be_stepped_over(self, log, before, eager, size):
        large = log.fill(before).add(refused=TOO_LARGE)
        behind_it = log.add()
        server = Server(log, sizes=[size] * 30, eager=eager)
        reader, taken = reader_of(server), []
        while len(taken) < before:
            taken += keys_of(fetch(reader, 2))
        with pytest.raises(RecordFault, match="16 MB") as caught:
            fetch(reader, 2)
        assert taken == list(range(1, before + 1))
        assert caught.value.index == 0
        assert "shop/orders" in caught.value.position
        assert place_of(caught.value.skip_cursor) == place_after(large)
        reader.close()
        assert not server.living()
        assert drained(reader_of(Server(log), place_of(caught.value.skip_cursor))) == [behind_it]

    def test_a_change_that_is_damaged_is_not_called_too_large(self, log):
        damaged = log.fill(1).add(refused=TOO_LARGE, said="BSONObj size: 0 (0x0) is invalid")
        behind_it = log.add()
        reader = reader_of(Server(log))
        assert keys_of(fetch(reader)) == [1]
        with pytest.raises(RecordFault, match="damaged") as caught:
            fetch(reader)
        assert place_of(caught.value.skip_cursor) == place_after(damaged)
        assert drained(reader_of(Server(log), place_of(caught.value.skip_cursor))) == [behind_it]

    @pytest.mark.parametrize("eager", [False, True])
    def test_a_change_without_the_image_that_is_required(self, log, eager):
        log.fill(1).add(refused=NO_IMAGE)
        reader = reader_of(Server(log, eager=eager))
        assert keys_of(fetch(reader)) == [1]
        for _ in range(2):
            with pytest.raises(ProviderFault, match="INCLUDE_IF_AVAILABLE") as caught:
                fetch(reader)
            assert caught.value.fault.category == ErrorCategory.UNSUPPORTED_CAPABILITY

    @pytest.mark.parametrize(
        ("codes", "raised"),
        [
            ([TOO_LARGE], TOO_LARGE),  # a server that then has nothing is believed the first time
            ([None, OVERTAKEN, EXPIRED], EXPIRED),  # the log that has overtaken a reader is asked once more
            ([None, OVERTAKEN], None),
            ([None, EXPIRED], None),  # PyMongo has resumed the stream on a member whose log is too short
            ([None, EXPIRED, EXPIRED], EXPIRED),
            ([EXPIRED], EXPIRED),
            ([None, UNKNOWN], None),  # the server opens the stream again without it (SERVER-128753)
            ([None, UNKNOWN, UNKNOWN], UNKNOWN),
            ([None, OVERTAKEN, None, OVERTAKEN], OVERTAKEN),
        ],
    )
    def test_a_failure_is_believed_or_asked_about_once(self, log, codes, raised):
        server = Server(log if raised != EXPIRED and raised else log.fill(1), failures=failing(*codes))
        if raised is None:
            assert keys_of(fetch(reader_of(server))) == [1]
            return
        with pytest.raises(OperationFailure, match=str(raised)):
            fetch(reader_of(server))
        assert raised != TOO_LARGE or not server.living()

    def test_a_notice_still_ends_the_batch(self, log):
        log.add()
        log.add("drop")
        log.fill(1).add(refused=TOO_LARGE)
        reader = reader_of(Server(log))
        first = fetch(reader)
        assert (keys_of(first), first.notices) == ([1], (Dropped("shop/orders"),))
        assert keys_of(fetch(reader)) == [3]

    @pytest.mark.parametrize("failure", [AutoReconnect("away"), *failing(BUSY)])
    def test_what_was_taken_before_a_failure_is_delivered(self, log, failure):
        server = Server(log.fill(3), sizes=[2], stream=Secretive, failures=[None, None, failure])
        reader = reader_of(server)
        batch = fetch(reader)
        assert (keys_of(batch), place_of(batch.cursor_after(2))) == ([1, 2], place_after(2))
        assert keys_of(fetch(reader)) == [3]


# -- How a stream is kept open


class TestOneStream:
    @pytest.mark.parametrize(("asked", "batch_size"), [(1, 100), (100, 100), (321, 321), (10**6, 500)])
    def test_an_answer_has_what_a_page_takes(self, log, asked, batch_size):
        server = Server(log)
        fetch(reader_of(server), asked)
        assert server.opened[0].batch_size == batch_size

    def test_a_page_of_what_is_left_asks_for_nothing(self, log):
        server = Server(log.fill(10))
        reader = reader_of(server)
        first, asked = fetch(reader, 4), server.asked
        second = fetch(reader, 4)
        assert server.asked == asked
        assert (first.requests, second.requests) == (2, 0)

    def test_an_answer_that_was_short_is_all_there_is_unless_it_may_have_been_full(self, log):
        log.fill(3)
        assert fetch(reader_of(Server(log))).caught_up is True
        assert fetch(reader_of(Server(log, sharded=True))).caught_up is None
        assert fetch(reader_of(Server(log, batch_size=3))).caught_up is None
        assert fetch(reader_of(Server(log)), 2).caught_up is None
        log.add(fullDocument={"_id": 1, "n": "x" * (9 << 20)})
        assert fetch(reader_of(Server(log))).caught_up is None

    def test_the_server_waits_as_long_as_the_call_but_not_so_long_that_nobody_can_end_it(self, log):
        server = Server(log)
        reader = reader_of(server)
        fetch(reader)
        assert server.waits == [10]
        server.before_answer = lambda: not log.entries and log.add()
        assert keys_of(fetch(reader, wait=5.0)) == [1]
        assert server.waits == [10, 1000]

    def test_the_last_answer_of_a_wait_ends_with_it(self, log):
        """A longer one would keep a call that wants to wait for less."""
        server, clock = Server(log), [0.0]
        reader = reader_of(server)

        def pass_by():
            clock[0] += server.waits[-1] / 1000

        server.before_answer = pass_by
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("multiclouddb_mongo.reader.time.monotonic", lambda: clock[0])
            fetch(reader, wait=1.3)
            assert server.waits == [1000, pytest.approx(300, abs=1)]
            fetch(reader, wait=0.3)
        assert server.waits[2:] == [pytest.approx(300, abs=1)]

    def test_the_same_stream_serves_every_wait(self, log):
        """One that is opened anew searches the log again."""
        server = Server(log)
        reader = reader_of(server)
        server.before_answer = lambda: not log.entries and log.add()
        fetch(reader, wait=5.0)
        for _ in range(6):
            fetch(reader)
        assert (server.waits[1:], len(server.opened)) == ([10] * 6, 1)

    def test_cancelled_while_it_is_opened(self, log):
        server = Server(log)
        reader = reader_of(server)
        server.at_open = reader.cancel
        with pytest.raises(ProviderFault, match="cancelled"):
            fetch(reader)
        reader.close()
        assert not server.living()

    def test_cancelled_from_elsewhere_while_it_waits(self, log):
        server = Server(log)
        reader = reader_of(server)
        waiting, go_on = threading.Event(), threading.Event()
        server.before_answer = lambda: waiting.set() or go_on.wait(30)
        with ThreadPoolExecutor() as pool:
            call = pool.submit(fetch, reader, wait=20.0)
            assert waiting.wait(30)
            reader.cancel()
            go_on.set()
            assert call.exception(30).fault.retryable
        reader.close()
        assert not server.living()


def test_an_empty_answer_of_a_mongos_is_the_end_only_after_the_end_that_the_log_had(log):
    server = Server(log, sharded=True)
    server.now = lambda: After("h", mark_text(5))
    reader = reader_of(server)
    log.add()
    assert keys_of(fetch(reader)) == [1]
    # The time of the call is over, and a shard may have an earlier change.
    batch = reader.fetch(10, 1 << 20, 0.0, Deadline.after(0.6))
    assert (len(batch), batch.caught_up) == (0, False)
    for _ in range(6):
        log.add(shown=False)
    assert fetch(reader).caught_up is None


class TestAMemberThatLags:
    """It is asked often for a fifth of a second, then less often, and is left once a call."""

    @pytest.fixture
    def late(self, monkeypatch):
        """Let a number of answers come from a member that lags; return where to set it, and a clock."""
        clock, left = [1000.0], [0]

        class End:
            def __init__(self, source):
                self.is_late = self.is_former = False

            def is_passed(self, place, stream, begin, log_end):
                clock[0] += 0.1  # what an answer takes
                self.is_late, left[0] = left[0] > 0, left[0] - 1
                return not self.is_late

        monkeypatch.setattr(reader_room, "LogEnd", End)
        monkeypatch.setattr(reader_room.time, "monotonic", lambda: clock[0])
        return left

    @pytest.fixture
    def server(self, log):
        made = Server(log)
        made.election, made.client = lambda stream: None, None
        return made

    def test_it_is_asked_less_often_after_a_while(self, log, late, server):
        reader = reader_of(server)
        late[0] = 6
        assert fetch(reader).caught_up is None
        assert server.waits == [10, 10, *[1000] * 5]
        assert len(server.opened) == 2

    def test_the_next_call_begins_anew(self, log, late, server):
        reader = reader_of(server)
        for _ in range(2):
            late[0] = 4
            server.waits.clear()
            fetch(reader)
            assert (server.waits[0], server.waits[-1]) == (10, 1000)

    def test_a_primary_is_not_left(self, log, late, server):
        server.election = lambda stream: "an election"
        late[0] = 6
        fetch(reader_of(server))
        assert server.waits == [10, 10, *[1000] * 5]
        assert len(server.opened) == 1

    def test_a_change_ends_the_wait(self, log, late, server):
        reader, late[0] = reader_of(server), 6
        server.before_answer = lambda: log.add() if late[0] == 3 else None
        assert keys_of(fetch(reader)) == [1]


class TestPosition:
    def test_no_record_behind_it_is_older_than_the_watermark(self, log):
        batch = fetch(reader_of(Server(log.fill(1))))
        assert batch.watermark == datetime.fromtimestamp(SECONDS - 1, UTC)

    @pytest.mark.parametrize("ahead", [3, 300])
    def test_nor_if_cluster_time_is_ahead_of_the_clocks(self, log, ahead):
        clock = datetime.fromtimestamp(SECONDS - ahead, UTC)
        log.add(wallTime=clock)
        server = Server(log)
        server.clock.told({"localTime": clock})
        reader = reader_of(server)
        shown = fetch(reader)
        assert len(shown) == 1
        assert shown.watermark == clock - timedelta(seconds=1)
        assert fetch(reader).watermark == clock - timedelta(seconds=1)

    def test_nor_before_the_end_of_the_log(self, log):
        """Where no change is shown, nothing tells by how much cluster time is ahead."""
        log.add(shown=False)
        server = Server(log, sharded=True)
        server.now = lambda: At(SECONDS + 100)
        assert fetch(reader_of(server)).watermark == datetime.fromtimestamp(SECONDS - 11, UTC)

    def test_of_a_foreign_token_nothing_is_told(self, log):
        place = After("r", token_text({"token": 1}))
        server = Server(log, failures=[AutoReconnect("away")])
        with pytest.raises(AutoReconnect):
            fetch(reader_of(server, place))
        assert server.places == [place]

    def test_where_there_is_nothing_it_is_looked_why(self, log):
        looked = []
        reader = reader_of(Server(log.fill(1)), check=lambda: looked.append(1))
        fetch(reader)
        assert not looked
        fetch(reader)
        assert looked
