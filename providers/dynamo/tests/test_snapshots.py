"""Tests snapshots of a table on the scripted server: rows, positions, and failures."""

import itertools
from datetime import UTC, datetime

import attrs
import pytest

from multiclouddb_api import (
    ChangeEvent,
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    NotKnown,
    RecordSkipped,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_api.arrow import events_to_arrow
from multiclouddb_conformance.open_client import open_client
from multiclouddb_conformance.refusals import refused
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo.client import Calls, Table
from multiclouddb_dynamo.provider import PLUGIN
from multiclouddb_dynamo.snapshots import FLOOR, cut, part_of, segments_of
from multiclouddb_spi import FeedSpec, InvalidCursor, Scan, Scanned, Segment, plan_id_of
from multiclouddb_spi.faults import key_digest
from multiclouddb_spi.positions import open_reader
from multiclouddb_spi.rows import event_ids_of

from .world import ADDRESS, TABLE, World, fetch, seconds, session, soon

ORDERED = SnapshotOrder.ORDERED


@pytest.fixture
def world():
    with World(shards=2) as made:
        yield made


def filled(world, count):
    keys = [f"k{number}" for number in range(count)]
    world.put(*keys)
    return sorted(keys)


def rows(consumer):
    return sorted(event.key.components["id"] for event in consumer.events if event.backfilled)


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
    return PLUGIN.connect(world.config(), clients).open_feed(FeedSpec(address, **spec), soon())


def all_segments(feed, wanted, count=3):
    plan, found = feed.snapshot(wanted, soon()), []
    rest = plan.rest
    while rest is not None:
        segments, rest = feed.segments(plan.scan, rest, count, soon())
        found += segments
    return found


def rest_of(feed, segment, cursor, limit=1000):
    """Return every row after a position, and the position after each row."""
    reader, events, cursors = open_reader(feed, segment.segment_id, cursor), [], []
    while True:
        batch = fetch(reader, limit)
        events += batch.events(0, len(batch))
        cursors += [batch.cursor_after(count) for count in range(1, len(batch) + 1)]
        if batch.outcome == Scanned():
            return events, cursors
        assert batch.caught_up is False


@pytest.mark.parametrize("asked", [None, 3])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_server_that_does_not_divide_a_scan_delivers_each_row_once(asked, count):
    """sivchari/kumo#610, stackshy/cloudemu#734: each segment of a scan is the whole table."""
    with World(divides_scans=False) as world:
        world.put(*"abcde"[:count])
        consumer = world.consumer(Snapshot(segments=asked))
        consumer.until_idle()
        assert sorted(event.key["id"] for event in consumer.events) == list("abcde"[:count])


def test_a_server_that_divides_a_scan_is_asked_for_every_segment():
    with World() as world:
        world.put(*"abcde")
        segments = all_segments(feed_of(world), 3)
        assert [part_of(each) for each in segments] == [(0, 3), (1, 3), (2, 3)]


class TestKeysAndValues:
    def test_a_scan_continues_after_every_row_in_another_process(self, typed):
        world, address, _ = typed
        feed, seen = feed_of(world, address), []
        for segment in all_segments(feed, 3):
            events, cursors = rest_of(feed, segment, segment.cursor, 2)
            seen += events
            for number, cursor in enumerate(cursors, 1):
                assert rest_of(feed_of(world, address), segment, cursor)[0] == events[number:]
        assert len(seen) == len({event.event_id for event in seen}) == ITEMS

    def test_a_row_is_the_document_of_the_stream(self, typed):
        world, address, names = typed
        start, events, page = Snapshot(SnapshotOrder.INTERLEAVED), [], None
        with world.client() as client:
            while page is None or not page.idle:
                page = client.read_changes(ChangeFeedRequest(address, start))
                if not isinstance(start, FromContinuationToken):
                    for item in world.server.client().scan(TableName="typed", ConsistentRead=True)["Items"]:
                        world.server.client().put_item(TableName="typed", Item=item | {"n": {"N": "1"}})
                start, events = FromContinuationToken(page.continuation_token), [*events, *page.events]
        found = {event.key: event for event in events if event.backfilled}
        later = {event.key: event for event in events if not event.backfilled}
        assert found.keys() == later.keys()
        assert len(found) == ITEMS
        for key, row in found.items():
            assert {**row.new_item_state, "n": 1} == later[key].new_item_state
            assert {name: row.new_item_state[name] for name in names} == key.components
            scan = Scan(FLOOR, row.timestamp, plan_id=plan_id_of(row.event_id))
            assert [row.event_id] == event_ids_of(scan, [key.canonical()])
            assert row.order_key == FLOOR < later[key].order_key

    def test_arrow_native_and_own_clients_give_the_same(self, typed):
        world, address, _ = typed
        for mode in NewItemStateMode:
            feed = feed_of(world, address, new_item_state_mode=mode)
            (segment,) = all_segments(feed, 1)
            batch = fetch(feed.open_segment(segment))
            assert len(batch) == ITEMS
            assert batch.arrow(2, 9) == events_to_arrow(batch.events(2, 9))
        made = (
            session().client(name, endpoint_url=world.script.endpoint_url)
            for name in ("dynamodb", "dynamodbstreams")
        )
        own = feed_of(world, address, DynamoClients(*made))
        events, cursors = rest_of(feed_of(world, address), segment, segment.cursor)
        assert rest_of(own, segment, segment.cursor) == (events, cursors)
        assert rest_of(own, segment, cursors[4])[0] == events[5:]
        events, _ = rest_of(feed_of(world, address, include_native=True), segment, segment.cursor)
        scanned = world.server.client().scan(TableName="typed", ConsistentRead=True)["Items"]
        assert [event.native for event in events] == scanned


# -- Plans and positions

SCAN = Scan(FLOOR, datetime(2026, 1, 1, tzinfo=UTC), 100, "p")
PLANS = [None, [], [5], [5, 100], [5, -1], [-1, 0], [5, 0, 0], "p"]
PLACES = ["x", "[", "7", "{}", "[]", '["S"]', '["Xa"]', "[7]", '["Sa","Sb"]', '["B*"]', f'["S{"a" * 5000}"]']


class TestPlans:
    @pytest.mark.parametrize(
        ("wanted", "nbytes", "count"),
        [(None, 1 << 30, 8), (None, 2 << 40, 8192), (None, 1 << 50, 32_000), (1, 1 << 50, 1),
         (40_000, 0, 40_000), (2**40, 0, 1_000_000)],
    )  # fmt: skip
    def test_the_number_of_segments_depends_on_the_size(self, wanted, nbytes, count):
        assert segments_of(wanted, Table(None, True, None, ("id",), nbytes, 0)) == count

    @pytest.mark.parametrize("count", [1, 7, 99, 100, 101])
    def test_every_segment_is_cut_once_whatever_the_steps(self, count):
        rest, numbers = [5, 0], []
        while rest is not None:
            assert cut(SCAN, rest, count) == cut(SCAN, rest, count)
            segments, rest = cut(SCAN, rest, count)
            assert len(segments) == min(count, 100 - len(numbers))
            numbers += [part_of(Segment.of(each.segment_id, each.cursor)) for each in segments]
            assert {(each.records, plan_id_of(each.segment_id)) for each in segments} == {(5, "p")}
        assert numbers == [(number, 100) for number in range(100)]

    def test_damaged_plans_and_places_are_refused(self, world):
        feed, segment = feed_of(world), SCAN.segment("0")
        names, shared = ("", "x", "-1", "100", "1.5", "9" * 5000, "²"), (None, 0, 2_000_000, "4", True, 1.5)
        scans = [attrs.evolve(SCAN, shared=each) for each in shared]
        acts = [lambda rest=rest: cut(SCAN, rest, 1) for rest in PLANS]
        acts += [lambda scan=scan: cut(scan, [5, 0], 1) for scan in scans]
        acts += [lambda place=place: feed.open_segment(segment.at(place)) for place in PLACES]
        acts += [lambda name=name: feed.open_segment(SCAN.segment(name)) for name in names]
        acts += [
            lambda each=each: feed.open_segment(attrs.evolve(SCAN, shared=each).segment("0"))
            for each in shared
        ]
        for act in acts:
            with pytest.raises(InvalidCursor):
                act()

    def test_a_plan_pins_the_stream_before_it_reads(self, world):
        feed_of(world).snapshot(None, soon())
        called = [call.operation for call in world.journal.calls()]
        assert called.index("Scan") > max(at for at, each in enumerate(called) if each == "GetShardIterator")


# -- Reading


class TestReading:
    def test_a_page_without_items_is_not_the_end_of_a_segment(self, world, monkeypatch):
        keys, scan, gone = filled(world, 12), Calls.scan, set()

        def examined(self, name, part, after, limit, *, native):
            """Return no item once, as if those that the service has examined were deleted meanwhile."""
            answer = scan(self, name, part, after, limit, native=native)
            if after is None or gone or "LastEvaluatedKey" not in answer:
                return answer
            gone.update(item["id"]["S"] for item in answer["Items"])
            return {"Items": [], "LastEvaluatedKey": answer["LastEvaluatedKey"]}

        monkeypatch.setattr(Calls, "scan", examined)
        consumer = world.consumer(Snapshot(segments=1), max_page_size=2)
        consumer.until_idle()
        assert gone
        assert rows(consumer) == [key for key in keys if key not in gone]

    def test_the_charge_is_counted_in_read_units(self, world):
        filled(world, 10)
        consumer = world.consumer(Snapshot(ORDERED, segments=1))
        consumer.until_idle()
        assert [page.diagnostics.native_charge for page in consumer.pages if page.events] == [1.0]

    def test_the_charge_is_told_before_a_row_is_read(self, world):
        assert world.consumer(Snapshot()).read().diagnostics.snapshot.units is None  # as of a new table
        for number in range(60):
            item = {"id": {"S": f"k{number}"}, "n": {"N": "1"}, "text": {"S": "x" * 10_000}}
            world.server.client().put_item(TableName=TABLE, Item=item)
        consumer = world.consumer(Snapshot(ORDERED, segments=1), max_page_size=20)
        first = consumer.read().diagnostics.snapshot
        assert first.rows == 0
        consumer.until_idle()
        charges = [page.diagnostics.native_charge or 0 for page in consumer.pages]
        assert 0.9 * sum(charges) < first.units < 1.1 * sum(charges)
        told = [page.diagnostics.snapshot for page in consumer.pages]
        assert {each.units for each in told if each is not None} == {first.units}

    def test_a_missing_right_is_known_at_the_first_page(self, world):
        world.troubles.fail("Scan", "AccessDeniedException", None)
        with refused(ErrorCategory.AUTHORIZATION_FAILED, "databases/dynamodb"):
            world.consumer(Snapshot()).read()

    def test_throttling_for_ever_says_how_to_scan_slower(self, world):
        consumer = world.consumer(Snapshot(ORDERED, segments=1))
        consumer.read()
        world.troubles.fail("Scan", "ProvisionedThroughputExceededException", None)
        (said,) = consumer.read(seconds(1)).diagnostics.partition_errors.values()
        assert "max_scan_rate" in said

    def test_an_item_that_cannot_be_decoded_is_named(self, world):
        filled(world, 6)
        world.script.spoil_item(TABLE, {"id": {"S": "k3"}})
        with refused(ErrorCategory.PROVIDER_ERROR, key_digest('{"id":"k3"}')):
            world.consumer(Snapshot(segments=1)).until_idle()
        request = ChangeFeedRequest(ADDRESS, Snapshot(segments=1))
        changes = world.client().iterate_changes(request, on_poison="skip", until_idle=True)
        pages = list(changes.pages())
        assert len([event for page in pages for event in page.events]) == 5
        (skipped,) = (each for page in pages for each in page.notices if isinstance(each, RecordSkipped))
        assert key_digest('{"id":"k3"}') in str(skipped)
        assert "k3" not in str(skipped).replace(key_digest('{"id":"k3"}'), "")


def recreate(world, key="id"):
    """Delete the table, and make another with the same name unless `key` is None."""
    tables = world.server.client()
    tables.delete_table(TableName=TABLE)
    if key is not None:
        world.server.create_table(TABLE, partition_key=key)
        tables.put_item(TableName=TABLE, Item={key: {"S": "stranger"}})


class TestAnotherTable:
    @pytest.mark.parametrize(
        ("key", "category", "text"),
        [
            ("id", ErrorCategory.INVALID_REQUEST, "replaced"),
            ("name", ErrorCategory.INVALID_REQUEST, "replaced"),
            (None, ErrorCategory.NOT_FOUND, "was deleted"),
        ],
    )
    def test_between_two_pages_and_in_another_process(self, world, key, category, text):
        filled(world, 20)
        consumer = world.consumer(Snapshot(ORDERED, segments=2), max_page_size=2)
        consumer.read()
        other = world.consumer(consumer.start)
        consumer.read()
        recreate(world, key)
        with refused(category):
            other.until_idle()
        with refused(category, text):
            consumer.until_idle()
        assert "stranger" not in {str(event.key) for event in consumer.events}

    @pytest.mark.parametrize("call", [2, 3, 5])
    def test_between_a_question_and_an_answer(self, world, call):
        """The table is replaced between the request and the time at which the service reads the rows."""
        filled(world, 20)
        calls, consumer = itertools.count(1), world.consumer(Snapshot(ORDERED, segments=2), max_page_size=2)
        world.troubles.act(
            lambda: recreate(world) if next(calls) == call else None, None, operation="DescribeTable"
        )
        with pytest.raises(MulticloudDbError) as caught:
            consumer.until_idle()
        assert caught.value.category in (ErrorCategory.INVALID_REQUEST, ErrorCategory.NOT_FOUND)
        assert "stranger" not in rows(consumer)


class TestLookup:
    def test_unprocessed_keys_are_asked_again(self, world):
        asked = [MulticloudDbKey({"id": name}) for name in filled(world, 130)]
        world.habits.page_bytes = 100
        some = feed_of(world).lookup(asked, soon())
        assert 0 < len(some) < 100
        with open_client(PLUGIN, world.config()) as client:
            rows = client.lookup(ADDRESS, asked)
        assert [row.key for row in rows.values()] == asked

    def test_a_scanned_key_of_each_type_is_found(self, typed):
        world, address, names = typed
        feed = feed_of(world, address)
        (segment,) = all_segments(feed, 1)
        events, _ = rest_of(feed, segment, segment.cursor)
        found = feed.lookup([event.key for event in events], soon())
        assert {key: row.new_item_state for key, row in found.items()} == {
            event.key: event.new_item_state for event in events
        }
        with pytest.raises(MulticloudDbError, match="is of type bool") as caught:
            feed.lookup([MulticloudDbKey(dict.fromkeys(names, True))], soon())
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    def test_an_answer_with_another_key_is_never_an_absence(self, world, monkeypatch):
        filled(world, 3)
        feed, items = feed_of(world), Calls.items

        def strange(calls, name, keys):
            found, left = items(calls, name, keys)
            return [*found[1:], {"id": {"S": "never asked for"}}], left

        monkeypatch.setattr(Calls, "items", strange)
        names = ["k0", "k1", "k2"]
        found = feed.lookup([MulticloudDbKey({"id": name}) for name in names], soon())
        lost = [key["id"] for key, answer in found.items() if isinstance(answer, NotKnown)]
        assert len(lost) == 1
        assert {row.key["id"] for row in found.values() if isinstance(row, ChangeEvent)} == {*names} - {*lost}
