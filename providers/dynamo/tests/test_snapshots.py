"""Tests snapshots of a table on the scripted server: rows, positions, and failures."""

import itertools
import random

import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    Now,
    RecordSkipped,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
    connect,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.refusals import refused
from multiclouddb_conformance.sink import Sink
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_dynamo.snapshots import FLOOR, Part, cut, is_segment, segments_of
from multiclouddb_spi import FeedSpec, InvalidCursor, Scanned, plan_id_of, snapshot_event_id

from .world import ADDRESS, TABLE, World, seconds, session, soon

HOUR = 3600
HOURS = 30  # a stream keeps records for 24 hours
ITEMS_OF_DAYS = 4 * HOURS
ORDERED = Snapshot(SnapshotOrder.ORDERED)
GIB = 1 << 30


@pytest.fixture
def world():
    with World(shards=2) as made:
        yield made


def request(start, **settings):
    position = FromContinuationToken(start) if isinstance(start, str) else start
    return ChangeFeedRequest(ADDRESS, position, **settings)


def walk(client, start, size=0, most=3000):
    """Read pages up to the first idle page."""
    for _ in range(most):
        page = client.read_changes(request(start, max_page_size=size), seconds(60))
        yield page
        start = page.continuation_token
        if page.idle:
            return
    raise AssertionError("neither idle nor over")


def rows_of(pages):
    return [event for page in pages for event in page.events if event.backfilled]


def keys_of(pages):
    return sorted(event.key.components["id"] for event in rows_of(pages))


def is_done(page):
    return any(isinstance(notice, BackfillDone) for notice in page.notices)


class Source:
    """Writes items, and remembers which items must be in the table."""

    def __init__(self, world, count=0):
        self.world, self.items, self.numbers = world, {}, itertools.count()
        for number in range(count):
            self.put(f"k{number}")

    def put(self, key):
        number = next(self.numbers)
        item = {"id": {"S": key}, "n": {"N": str(number)}}
        self.world.server.client().put_item(TableName=TABLE, Item=item)
        self.items[key] = {"id": key, "n": number}

    def delete(self, key):
        if self.items.pop(key, None):
            self.world.server.client().delete_item(TableName=TABLE, Key={"id": {"S": key}})


# -- Keys and values


TYPES = {
    "large number": ({"id": "N"}, lambda n: {"id": {"N": str(10**30 + n)}}),
    "binary": ({"id": "B"}, lambda n: {"id": {"B": bytes([n, 255])}}),
    "text and number": ({"id": "S", "at": "N"}, lambda n: {"id": {"S": f"é{n % 3}"}, "at": {"N": str(n)}}),
    "number and binary": (
        {"id": "N", "at": "B"},
        lambda n: {"id": {"N": str(n % 3)}, "at": {"B": bytes([n])}},
    ),
}
VALUES = {
    "text": {"S": "x"},
    "$map": {"M": {"$set": {"L": [{"N": "1"}, {"NULL": True}]}}},
    "big": {"N": "12345678901234567890123456789012345678"},
    "half": {"N": "0.5"},
    "raw": {"B": b"\x00\xff"},
    "set": {"NS": ["1", "2.5"]},
    "yes": {"BOOL": True},
}
ITEMS = 12


@pytest.fixture(params=list(TYPES))
def typed(request):
    """Return the world, the address and the names of the keys of a table with keys of the given types."""
    kinds, key_of = TYPES[request.param]
    with World() as made:
        names = list(kinds)
        made.server.create_table("typed", "NEW_IMAGE", *names[1:], partition_key=names[0], types=kinds)
        for number in range(ITEMS):
            made.server.client().put_item(TableName="typed", Item=key_of(number) | VALUES)
        yield made, ResourceAddress(collection="typed"), names


def feed_of(world, address=ADDRESS, clients=None, **spec):
    provider = PLUGIN.connect(world.config(), clients)
    return provider.open_feed(FeedSpec(address, **spec), soon())


def all_segments(feed, plan, count=3):
    rest, found = plan.cursor, []
    while rest is not None:
        segments, rest = feed.segments(rest, count, soon())
        found += segments
    return found


def rest_of(feed, segment, cursor, limit=1000):
    """Return every row after a position, and the position after each row."""
    reader, events, cursors = feed.open(segment.segment_id, cursor), [], []
    while True:
        batch = reader.fetch(limit, 1 << 20, 0.0, soon())
        events += batch.events(0, len(batch))
        cursors += [batch.cursor_after(count) for count in range(1, len(batch) + 1)]
        if batch.outcome == Scanned():
            return events, cursors
        assert batch.caught_up is False


class TestKeysAndValues:
    def test_a_scan_continues_after_every_row_in_another_process(self, typed):
        world, address, _ = typed
        feed, seen = feed_of(world, address), []
        for segment in all_segments(feed, feed.snapshot(3, soon())):
            events, cursors = rest_of(feed, segment, segment.cursor, 2)
            ids = [event.event_id for event in events]
            seen += ids
            for number, cursor in enumerate(cursors, 1):
                again, _ = rest_of(feed_of(world, address), segment, cursor)
                assert [event.event_id for event in again] == ids[number:]
        assert len(seen) == len(set(seen)) == ITEMS

    def test_a_row_is_the_document_of_the_stream(self, typed):
        world, address, names = typed
        start, events, page = Snapshot(SnapshotOrder.INTERLEAVED), [], None
        with world.client() as client:
            start = FromContinuationToken(
                client.read_changes(ChangeFeedRequest(address, start)).continuation_token
            )
            for item in world.server.client().scan(TableName="typed", ConsistentRead=True)["Items"]:
                world.server.client().put_item(TableName="typed", Item=item | {"n": {"N": "1"}})
            while page is None or not page.idle:
                page = client.read_changes(ChangeFeedRequest(address, start))
                start, events = FromContinuationToken(page.continuation_token), [*events, *page.events]
        rows = {event.key: event for event in events if event.backfilled}
        later = {event.key: event for event in events if not event.backfilled}
        assert rows.keys() == later.keys()
        assert len(rows) == ITEMS
        for key, row in rows.items():
            assert {**row.new_item_state, "n": 1} == later[key].new_item_state
            assert {name: row.new_item_state[name] for name in names} == key.components
            assert row.event_id == snapshot_event_id(row.event_id.split(":")[1], key)
            assert row.order_key == FLOOR < later[key].order_key

    def test_arrow_native_and_own_clients_give_the_same(self, typed):
        world, address, _ = typed
        for mode in NewItemStateMode:
            feed = feed_of(world, address, new_item_state_mode=mode)
            (segment,) = all_segments(feed, feed.snapshot(1, soon()))
            batch = feed.open(segment.segment_id, segment.cursor).fetch(100, 1 << 20, 0.0, soon())
            assert len(batch) == ITEMS
            assert batch.arrow(2, 9) == events_to_arrow(batch.events(2, 9))
        made = (
            session().client(name, endpoint_url=world.script.endpoint_url)
            for name in ("dynamodb", "dynamodbstreams")
        )
        own, ours = feed_of(world, address, DynamoClients(*made)), feed_of(world, address)
        events, cursors = rest_of(ours, segment, segment.cursor)
        assert rest_of(own, segment, segment.cursor) == (events, cursors)
        assert rest_of(own, segment, cursors[4])[0] == events[5:]
        events, _ = rest_of(feed_of(world, address, include_native=True), segment, segment.cursor)
        scanned = world.server.client().scan(TableName="typed", ConsistentRead=True)["Items"]
        assert [event.native for event in events] == scanned


# -- Plans and positions

PLANS = [None, [], ["p", 1, 4, 0], ["p", 1, 4, 0, 4], ["p", 1, 4, -1, 0], ["p", 1, 2_000_000, 0, 0], "p"]
PLACES = [
    None, [1], [1, 0], [-1, 4], [1, 2_000_000], [1, 4, "x"], [1, 4, "S"], [1, 4, ".", "."],
    [1, 4, "Sa", "Sb", "Sc"], [1, 4, "S" + "a" * 5000], [1, 4, 7], ["000000000000000000001", 17],
    ["n", 17, "iterator"],
]  # fmt: skip


class TestPlans:
    @pytest.mark.parametrize(
        ("wanted", "nbytes", "count"),
        [(None, GIB, 8), (None, 2 << 40, 8192), (None, 1 << 50, 32_000), (1, 1 << 50, 1),
         (40_000, 0, 40_000), (2**40, 0, 1_000_000)],
    )  # fmt: skip
    def test_the_number_of_segments_depends_on_the_size(self, wanted, nbytes, count):
        assert segments_of(wanted, Table(None, True, None, ("id",), nbytes, 0)) == count

    @pytest.mark.parametrize("count", [1, 7, 100])
    def test_every_segment_is_cut_once_whatever_the_steps(self, count):
        rest, numbers = ["p", 1, 100, 5, 0], []
        while rest is not None:
            assert cut(rest, count) == cut(rest, count)
            segments, rest = cut(rest, count)
            assert len(segments) <= count
            numbers += [Part.of(segment.segment_id, segment.cursor).segment for segment in segments]
            assert {(each.records, plan_id_of(each.segment_id)) for each in segments} == {(5, "p")}
        assert numbers == list(range(100))

    def test_damaged_plans_and_places_are_refused(self, world):
        for cursor in PLANS:
            with pytest.raises(InvalidCursor):
                cut(cursor, 1)
        feed = feed_of(world)
        for cursor in PLACES:
            assert not is_segment(cursor), cursor
            with pytest.raises(InvalidCursor):
                feed.open("snapshot:p:0", cursor)
        for name in ("", "x", "-1", "4", "1.5", "9" * 5000, "²"):
            with pytest.raises(InvalidCursor):
                feed.open(f"snapshot:p:{name}", [1, 4])
        for key in (["Sa", "Sb"], ["B*"]):  # not a key of this table
            with pytest.raises(InvalidCursor):
                feed.open("snapshot:p:0", [1, 4, *key]).fetch(1, 1000, 0.0, soon())

    def test_the_feed_takes_places_of_a_scan_like_others(self, world):
        feed = feed_of(world)
        here, there = [1, 4], [1, 4, "Sk1"]
        assert feed.compare(here, here) == 0
        assert feed.compare(here, there) is feed.compare(there, ["n", 1]) is None
        assert (feed.without_hints(here), feed.without_hints(there)) == (here, there)
        assert feed.describe(there).time is None
        assert feed.headroom(there, feed.clock(soon())) is None

    def test_a_plan_pins_the_stream_before_it_reads(self, world):
        feed_of(world).snapshot(None, soon())
        called = [call.operation for call in world.journal.calls()]
        assert called.index("Scan") > max(at for at, each in enumerate(called) if each == "GetShardIterator")

    # A token contains the last keys of eight segments. Compression cannot make 32 random hexadecimal digits
    # smaller than 16 bytes.
    @pytest.mark.parametrize(("keys", "most"), [("short", 400), ("uuid", 400 * 4 // 3)])
    def test_a_scan_of_many_segments_adds_at_most_400_bytes_to_a_token(self, keys, most):
        dice = random.Random(16)
        with World(shards=16) as world, world.client() as client:
            for number in range(200):
                world.put(f"k{number}" if keys == "short" else f"{dice.getrandbits(128):032x}")
            stream, largest = client.read_changes(request(Now())).continuation_token, 0
            for page in walk(client, Snapshot(SnapshotOrder.ORDERED, segments=16), 5):
                largest = max(largest, len(page.continuation_token))
                if is_done(page):
                    break
        assert largest - len(stream) <= most


# -- Reading


class TestReading:
    def test_a_page_without_items_is_not_the_end_of_a_segment(self, world, monkeypatch):
        source, scan, asked = Source(world, 6), Calls.scan, set()

        def examined(self, name, part, after, limit, *, native):
            """Return no item the first time, as if the service had examined others."""
            if after is None or str(after) in asked:
                return scan(self, name, part, after, limit, native=native)
            asked.add(str(after))
            return {"Items": [], "LastEvaluatedKey": after}

        monkeypatch.setattr(Calls, "scan", examined)
        with world.client() as client:
            assert keys_of(walk(client, Snapshot(segments=1), 2)) == sorted(source.items)
        assert asked

    def test_the_key_of_a_deleted_item_is_a_position(self, world):
        source, rows = Source(world, 20), []
        with world.client() as client:
            for page in walk(client, Snapshot(SnapshotOrder.ORDERED, segments=1), 1):
                rows += rows_of([page])
                for event in rows_of([page]):
                    source.delete(event.key.components["id"])
        assert len({event.key for event in rows}) == len(rows) == 20

    def test_the_charge_is_counted_in_read_units(self, world):
        Source(world, 10)
        with world.client() as client:
            pages = list(walk(client, Snapshot(SnapshotOrder.ORDERED, segments=1)))
        assert [page.diagnostics.native_charge for page in pages if rows_of([page])] == [1.0]

    def test_a_missing_right_is_known_at_the_first_page(self, world):
        world.troubles.fail("Scan", "AccessDeniedException", None)
        with refused(ErrorCategory.AUTHORIZATION_FAILED, "how-to/dynamodb"):
            world.client().read_changes(request(Snapshot()))

    def test_throttling_for_ever_says_how_to_scan_slower(self, world):
        start = Snapshot(SnapshotOrder.ORDERED, segments=1)
        token = world.client().read_changes(request(start)).continuation_token
        world.troubles.fail("Scan", "ProvisionedThroughputExceededException", None)
        page = world.client().read_changes(request(token), seconds(1))
        (said,) = page.diagnostics.partition_errors.values()
        assert "max_scan_rate" in said

    def test_an_answer_that_is_cut_off_is_not_the_end(self, world):
        source = Source(world, 20)
        trouble = world.troubles.drop("Scan", 6, mid_body=True, every=2)
        assert keys_of(walk(world.client(), Snapshot(segments=2), 4)) == sorted(source.items)
        assert trouble.happened > 3

    def test_an_item_that_cannot_be_decoded_is_named(self, world):
        Source(world, 6)
        world.script.spoil_item(TABLE, {"id": {"S": "k3"}})
        with world.client() as client:
            with refused(ErrorCategory.PROVIDER_ERROR, "id = k3"):
                list(walk(client, Snapshot(segments=1)))
            changes = client.iterate_changes(request(Snapshot(segments=1)), on_poison="skip", until_idle=True)
            pages = list(changes.pages())
        assert keys_of(pages) == ["k0", "k1", "k2", "k4", "k5"]
        (skipped,) = (each for page in pages for each in page.notices if isinstance(each, RecordSkipped))
        assert "id = k3" in str(skipped)


# -- Another table with the same name


def recreate(world, key="id"):
    tables = world.server.client()
    tables.delete_table(TableName=TABLE)
    if key is not None:
        world.server.create_table(TABLE, partition_key=key)
        tables.put_item(TableName=TABLE, Item={key: {"S": "stranger"}})


REPLACED = {
    "recreated": ("id", ErrorCategory.INVALID_REQUEST, "replaced"),
    "recreated with another key": ("name", ErrorCategory.INVALID_REQUEST, "replaced"),
    "deleted": (None, ErrorCategory.NOT_FOUND, "was deleted"),
}


class TestAnotherTable:
    """Tests that rows of another table are never returned, whenever the table was recreated."""

    @pytest.mark.parametrize("case", REPLACED)
    def test_between_two_pages_and_in_another_process(self, world, case):
        key, category, text = REPLACED[case]
        Source(world, 20)
        pages = walk(world.client(), Snapshot(SnapshotOrder.ORDERED, segments=2), 2)
        seen = [next(pages), next(pages)]
        recreate(world, key)
        with refused(category):
            list(walk(world.client(), seen[0].continuation_token))
        with refused(category, text):
            seen += pages
        assert "stranger" not in {str(event.key) for page in seen for event in page.events}

    @pytest.mark.parametrize("call", [2, 3, 5])
    def test_between_a_question_and_an_answer(self, world, call):
        """The table is replaced between the request and the time at which the service reads the rows."""
        Source(world, 20)
        calls, seen = itertools.count(1), []
        world.troubles.act(
            lambda: recreate(world) if next(calls) == call else None, None, operation="DescribeTable"
        )
        with pytest.raises(MulticloudDbError) as caught:
            seen += walk(world.client(), Snapshot(SnapshotOrder.ORDERED, segments=2), 2)
        assert caught.value.category in (ErrorCategory.INVALID_REQUEST, ErrorCategory.NOT_FOUND)
        assert "stranger" not in {event.key.components["id"] for page in seen for event in page.events}


# -- Long scans


@pytest.mark.usefixtures("hasty")
class TestTimePasses:
    """Tests a scan that takes longer than the stream keeps its records."""

    def scan(self, world, start):
        """Scan with a simulated hour of changes after each page with rows; return source, sink and pages."""
        source = Source(world, ITEMS_OF_DAYS)
        world.script.advance(HOUR)  # otherwise the stream repeats the last two minutes
        sink, pages, hours = Sink(), [], 0
        while not pages or not pages[-1].idle:
            assert len(pages) < 500
            with connect(world.config()) as client:  # another process, which has no rows but knows the time
                pages.append(client.read_changes(request(start, max_page_size=4), seconds(60)))
            sink.apply(pages[-1].events)
            start = pages[-1].continuation_token
            if hours < HOURS and rows_of(pages[-1:]):
                hours += 1
                source.put(f"k{hours * 7 % ITEMS_OF_DAYS}")
                if hours % 2:
                    source.delete(f"k{hours * 11 % ITEMS_OF_DAYS}")
                if hours % 4 == 0:  # shards live for four hours, as in the service
                    world.roll_over()
                world.script.advance(HOUR)
        assert hours == HOURS
        return source, sink, pages

    def test_auto_becomes_interleaved_when_half_of_the_time_is_over(self, world):
        source, sink, pages = self.scan(world, Snapshot())
        assert sum(map(is_done, pages)) == 1
        assert {key.components["id"]: dict(item) for key, item in sink.rows().items()} == source.items
        orders = [page.diagnostics.snapshot.order for page in pages if page.diagnostics.snapshot is not None]
        assert orders.index(SnapshotOrder.INTERLEAVED) == 13  # the first page has no rows
        assert set(orders[13:]) == {SnapshotOrder.INTERLEAVED}

    def test_ordered_expires_loudly(self, world):
        with refused(ErrorCategory.CHECKPOINT_EXPIRED):
            self.scan(world, ORDERED)
