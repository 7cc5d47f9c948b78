"""Tests the mode of latest versions: starts, merged ranges, soft deletes, tokens, and what it refuses."""

from datetime import timedelta
from functools import partial

import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    Capability,
    ChangeFeedRequest,
    ChangeType,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    RecordSkipped,
    Snapshot,
    SnapshotOrder,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos import client as client_room
from multiclouddb_spi import Drained
from testing.consumer import markers

from .world import ADDRESS, DATABASE, NAME, soon

pytestmark = pytest.mark.usefixtures("hasty")

LATEST = CosmosOptions(mode="latest")
MARKED = CosmosOptions(mode="latest", delete_marker="/deleted")
ALL = CosmosOptions(mode="all_versions")


def reading(world, start=None, options=LATEST, **request):
    """Return a consumer in the mode of latest versions, from the beginning unless a start is given."""
    return world.consumer(start or Beginning(), provider_options=options, **request)


def last_of(events):
    """Map each id to the last state that was delivered, which is None after a delete."""
    return {event.key.components["id"]: event.new_item_state for event in events}


def held(world):
    return {
        each["id"]: {name: value for name, value in each.items() if not name.startswith("_")}
        for each in world.container.read_all_items()
    }


def merged(world):
    """Mix the changes of two ranges, and make the times of one of them earlier than those before them."""
    halves = [[], []]
    for number in range(12):
        where = int(world.server.partition_of(DATABASE, NAME, f"k{number}"))
        halves[where].append(f"k{number}")
    world.put(*halves[0], *halves[0])
    world.server.advance(30)  # a start that is further ahead is refused
    moment = world.server.clock.now()
    world.put(*halves[1])
    world.server.merge(DATABASE, NAME, "0", "1")
    return moment, set(halves[1])


class TestStarts:
    def test_merged_ranges_are_read_from_the_beginning(self, world):
        merged(world)
        consumer = reading(world)
        consumer.until_idle()
        assert len(consumer.events) == 12
        assert last_of(consumer.events) == held(world)
        assert {event.backfilled for event in consumer.events} == {False}
        refused = partial(world.consumer, Beginning(), provider_options=CosmosOptions(backfill=True))
        with pytest.raises(MulticloudDbError) as caught:
            refused().until_idle()
        assert "mode='latest'" in caught.value.message

    @pytest.mark.parametrize("backup", [True, False])
    def test_an_iterator_reads_merged_ranges(self, world, backup):
        world.server.all_versions(backup)
        merged(world)
        request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST)
        found = []
        for page in world.client().iterate_changes(request).pages():
            found += page.events
            if page.idle:
                break
        assert last_of(found) == held(world)

    @pytest.mark.parametrize("early", [timedelta(), timedelta(milliseconds=900)])
    def test_a_time_is_never_late_in_merged_ranges(self, world, early):
        moment, wanted = merged(world)
        consumer = reading(world, AtTime(moment.replace(microsecond=0) + early))
        consumer.until_idle()
        assert last_of(consumer.events).keys() == wanted
        world.put("k0")
        consumer.restart().until_idle()
        assert last_of(consumer.events).keys() == wanted | {"k0"}

    @pytest.mark.parametrize("size", [1, 0])
    def test_a_stream_from_a_time_goes_on_after_a_merge(self, world, size):
        """The service refuses a time for merged partitions: Azure/azure-sdk-for-java issue 48752."""
        world.put(*(f"old{number}" for number in range(6)))
        world.server.advance(30)
        start = AtTime(world.server.clock.now())
        wanted = {f"k{number}" for number in range(12)}
        world.put(*wanted)
        consumer = reading(world, start, max_page_size=size)
        consumer.read()
        world.server.merge(DATABASE, NAME, "0", "1")
        before = world.requests().count((400, 0))
        consumer.until_idle()
        assert last_of(consumer.events).keys() == wanted
        assert world.requests().count((400, 0)) - before <= 2  # once for each range
        other = reading(world, start)
        other.until_idle()
        assert last_of(other.events).keys() == wanted
        world.put("k3")
        consumer.until_idle()
        assert consumer.events[-1].key["id"] == "k3"

    def test_a_time_ahead_of_the_service_is_not_early(self, lone):
        start = AtTime(lone.server.clock.now() + timedelta(seconds=30))
        consumer = reading(lone, start)
        assert consumer.until_idle() == []
        _, feed = lone.feed(options=LATEST)
        ((name, cursor),) = [(seed.partition_id, seed.cursor) for seed in feed.start(start, None, soon())]
        head = feed.heads({name: cursor}, None, soon())[name].cursor
        lone.put("early")
        assert consumer.until_idle() == []
        lone.server.advance(31)
        written = lone.put("later")
        assert consumer.until_idle() == written
        batch = feed.open(name, head).fetch(10, 1 << 20, 0.0, soon())
        assert markers(batch.events(0, len(batch))) == written

    def test_an_item_without_a_time_is_told(self, lone, monkeypatch):
        parsed, start = client_room._parsed, AtTime(lone.server.clock.now())

        def damaged(text):
            body = parsed(text)
            for item in body["Documents"]:
                if item["n"] == 2:
                    del item["_ts"]
            return body

        monkeypatch.setattr(client_room, "_parsed", damaged)
        lone.fill(3)
        refusal(ErrorCategory.PROVIDER_ERROR, reading(lone, start).until_idle)

    def test_a_time_before_a_page_holds_after_it(self, world):
        """In merged ranges, earlier changes follow later ones, also behind a restart."""
        moment, wanted = merged(world)
        consumer = reading(world, AtTime(moment), max_page_size=1)
        for _ in range(40):
            consumer.read()
            consumer.restart()
        assert last_of(consumer.events).keys() == wanted

    @pytest.mark.parametrize("start", [Beginning(), Now(), AtTime])
    def test_no_later_event_is_older_than_the_watermark(self, world, start):
        moment, _ = merged(world)
        consumer = reading(world, AtTime(moment - timedelta(seconds=900)) if start is AtTime else start)
        consumer.request["max_page_size"] = 1
        for _ in range(3):
            consumer.until_idle()
            world.server.advance(60)
            world.put("k1", "k2", "new")
        consumer.until_idle()
        lowest = None
        for page in consumer.pages:
            for event in page.events:
                assert lowest is None or event.timestamp >= lowest
            lowest = page.diagnostics.watermark or lowest
        assert lowest is not None

    def test_a_snapshot_is_refused_with_the_way_out(self, world):
        request = ChangeFeedRequest(ADDRESS, Snapshot(SnapshotOrder.ORDERED), provider_options=LATEST)
        read = partial(world.client().read_changes, request)
        refusal(ErrorCategory.UNSUPPORTED_CAPABILITY, read, "Beginning()")


class TestOrder:
    def test_ids_and_order_keys_go_through_splits_and_merges(self, lone):
        consumer = reading(lone, Now(), max_page_size=2)
        consumer.read()
        for number in range(6):
            lone.put("a", "b", "c")
            if number == 2:
                lone.split("0")
            if number == 4:
                lone.merge("1", "2")
            consumer.restart().until_idle()
        for name in "abc":
            mine = [event for event in consumer.events if event.key.components["id"] == name]
            assert len(mine) == 6
            for values in ([event.order_key for event in mine], [event.event_id for event in mine]):
                assert values == sorted(set(values))
        again = reading(lone)
        again.until_idle()
        last = {event.key: (event.event_id, event.order_key) for event in consumer.events}
        assert {event.key: (event.event_id, event.order_key) for event in again.events} == last

    def test_a_row_of_a_snapshot_has_the_order_key_of_its_last_change(self, world):
        world.fill(5)
        consumer = reading(world)
        consumer.until_idle()
        rows = world.consumer(Snapshot())
        rows.until_idle()
        assert {event.key: event.order_key for event in rows.events} == {
            event.key: event.order_key for event in consumer.events
        }

    @pytest.mark.parametrize("size", [1, 2])
    def test_a_page_ends_inside_a_transaction(self, lone, size):
        batch = [("upsert", ({"id": f"b{number}", "pk": "p", "n": number},)) for number in range(5)]
        lone.batch("p", *batch)
        consumer = reading(lone, max_page_size=size)
        consumer.read()
        lone.container.upsert_item({"id": "b0", "pk": "p", "n": 9})
        for _ in range(10):
            consumer.restart().read()
        assert last_of(consumer.events) == held(lone)
        assert len({event.event_id for event in consumer.events}) == len(consumer.events)

    def test_a_bounded_read_goes_on_to_its_end_behind_later_changes(self, lone):
        """Items that have changed since come with a later read, in their newest state."""
        _, feed = lone.feed(options=LATEST)
        (seed,) = feed.start(Beginning(), None, soon())
        lone.fill(10)
        bound = feed.heads({seed.partition_id: seed.cursor}, None, soon())[seed.partition_id].cursor
        lone.put("k0", "k1")
        lone.split("0")
        found, reader = [], feed.open(seed.partition_id, seed.cursor, bound)
        while True:
            batch = reader.fetch(3, 1 << 20, 0.0, soon())
            found += batch.events(0, len(batch))
            if batch.outcome.__class__.__name__ == "Reached":
                break
        assert len(found) == 8
        batch = feed.open(seed.partition_id, batch.end).fetch(10, 1 << 20, 0.0, soon())
        assert isinstance(batch.outcome, Drained)


class TestSoftDeletes:
    def test_a_marked_item_is_a_delete_with_its_last_state(self, world):
        consumer = reading(world, options=MARKED)
        world.put("a", "b")
        consumer.until_idle()
        world.put("a", deleted=True)
        world.put("b", deleted=False)
        world.put("c", deleted=True, ttl=1)
        consumer.until_idle()
        first, second, *rest = consumer.events
        assert {first.type, second.type} == {ChangeType.UPDATE}
        found = {event.key.components["id"]: event for event in rest}
        assert found["b"].type is ChangeType.UPDATE
        for name in "ac":
            assert (found[name].type, found[name].new_item_state) == (ChangeType.DELETE, None)
            assert found[name].old_item_state == held(world)[name]
        assert found["b"].old_item_state is None
        keys = [event.key for event in rest]
        rows = consumer.client.lookup(ADDRESS, keys, provider_options=MARKED)
        assert {key.components["id"] for key in keys if rows[key] is not None} == {"b"}
        arrow = {name: value for batch in _arrow(world) for name, value in batch}
        assert arrow["a"] is not None
        assert arrow["b"] is None

    def test_without_a_marker_a_mark_is_a_property(self, world):
        world.put("a", deleted=True)
        consumer = reading(world)
        consumer.until_idle()
        assert [event.type for event in consumer.events] == [ChangeType.UPDATE]

    @pytest.mark.parametrize(
        ("value", "kind"),
        [("true", "text"), (1, "a number"), (None, "null"), ({"at": True}, "an object"), ([], "an array")],
    )
    def test_a_mark_of_another_type_is_refused(self, lone, value, kind):
        lone.put("before")
        lone.put("wrong", state={"gone": value})
        written = lone.put("after")
        consumer = reading(lone, options=CosmosOptions(mode="latest", delete_marker="/state/gone"))
        consumer.read()
        with pytest.raises(MulticloudDbError) as caught:
            consumer.until_idle()
        assert caught.value.category == ErrorCategory.PROVIDER_ERROR
        for text in ("/state/gone", "the item sha256:", kind):
            assert text in caught.value.message
        assert "wrong" not in str(caught.value)
        consumer.start = FromContinuationToken(caught.value.detail.skip_token)
        assert consumer.until_idle() == written
        assert any(isinstance(notice, RecordSkipped) for notice in consumer.notices)

    @pytest.mark.parametrize(
        ("marker", "value", "kind"),
        [
            ("/a/b", {"a": [{"b": True}]}, ChangeType.UPDATE),
            ("/a/b", {"a": None}, ChangeType.UPDATE),
            ("/a/b", {"a": "b"}, ChangeType.UPDATE),
            ("/a/b", {"a/b": True}, ChangeType.UPDATE),
            ('/"a/b"', {"a/b": True}, ChangeType.DELETE),
            ('/a/"b c"/é', {"a": {"b c": {"é": True}}}, ChangeType.DELETE),
            ("/_ts", {}, None),
        ],
    )
    def test_a_path_goes_through_objects_only(self, lone, marker, value, kind):
        lone.container.upsert_item({"id": "x", "pk": "x", "n": 1, **value})
        consumer = reading(lone, options=CosmosOptions(mode="latest", delete_marker=marker))
        if kind is None:  # the service's own property is a number
            refusal(ErrorCategory.PROVIDER_ERROR, consumer.until_idle, "/_ts", "a number")
            return
        consumer.until_idle()
        assert [event.type for event in consumer.events] == [kind]

    @pytest.mark.parametrize("marker", ["deleted", "/", "", "/a//b", "//a", "/a/", '/"a"b'])
    def test_a_path_that_is_none(self, world, marker):
        options = CosmosOptions(mode="latest", delete_marker=marker)
        refusal(ErrorCategory.INVALID_REQUEST, partial(reading(world, options=options).read), "delete_marker")

    def test_a_marker_has_no_effect_in_the_other_mode(self, world):
        options = CosmosOptions(delete_marker="/deleted")
        refusal(
            ErrorCategory.INVALID_REQUEST, reading(world, options=options).read, "delete_marker", "latest"
        )


def _arrow(world):
    _, feed = world.feed(options=MARKED)
    for seed in feed.start(Beginning(), None, soon()):
        batch = feed.open(seed.partition_id, seed.cursor).fetch(100, 1 << 20, 0.0, soon())
        ids = [event.key.components["id"] for event in batch.events(0, len(batch))]
        yield zip(ids, batch.arrow(0, len(batch))["old_item_state"].to_pylist(), strict=True)


class TestModes:
    def test_a_token_of_the_other_mode_is_refused(self, world):
        world.fill(4)
        latest, other = reading(world), world.consumer()
        latest.read()
        for token, options in ((latest.token, ALL), (latest.token, None), (other.token, LATEST)):
            request = ChangeFeedRequest(ADDRESS, FromContinuationToken(token), provider_options=options)
            read = partial(world.client().read_changes, request)
            refusal(ErrorCategory.INVALID_REQUEST, read, "'latest'", "'all_versions'")

    @pytest.mark.parametrize(("options", "other"), [(LATEST, ALL), (ALL, LATEST)], ids=["latest", "all"])
    def test_a_token_of_rows_alone_is_refused_in_the_other_mode(self, world, options, other):
        world.fill(4)
        start, client = Snapshot(changes=False), world.client()
        page = client.read_changes(ChangeFeedRequest(ADDRESS, start, provider_options=options))
        token = FromContinuationToken(page.continuation_token)
        read = partial(client.read_changes, ChangeFeedRequest(ADDRESS, token, provider_options=other))
        refusal(ErrorCategory.INVALID_REQUEST, read, "'latest'", "'all_versions'")

    def test_a_position_of_the_other_mode_is_refused(self, world):
        feeds = [world.feed(options=options)[1] for options in (ALL, LATEST)]
        for feed, other in (feeds, feeds[::-1]):
            (seed, *_) = other.start(Now(), None, soon())
            with pytest.raises(MulticloudDbError) as caught:
                feed.open(seed.partition_id, seed.cursor)
            assert "'latest'" in caught.value.message
            assert "'all_versions'" in caught.value.message

    def test_the_mode_of_the_connection_can_be_overridden(self, world):
        written = world.fill(4)
        url = f"{world.config().connection['url']}&mode=latest&delete_marker=/deleted"
        with connect(url) as client:
            assert not client.capabilities().is_supported(Capability.CHANGE_FEED_DELETES)
            assert client.capabilities(ALL).is_supported(Capability.CHANGE_FEED_DELETES)
            world.put("gone", deleted=True)
            events = client.iterate_changes(ChangeFeedRequest(ADDRESS, Beginning()), until_idle=True)
            assert sorted(markers(events)) == written
            page = client.read_changes(ChangeFeedRequest(ADDRESS, Now(), provider_options=ALL))
            token = FromContinuationToken(page.continuation_token)
            client.read_changes(ChangeFeedRequest(ADDRESS, token, provider_options=ALL))
            read = partial(client.read_changes, ChangeFeedRequest(ADDRESS, token))
            refusal(ErrorCategory.INVALID_REQUEST, read, "'latest'", "'all_versions'")

    @pytest.mark.parametrize(
        ("option", "value"), [("mode", "newest"), ("delete_marker", "deleted"), ("delete_marker", "/x")]
    )
    def test_a_wrong_option_of_the_connection_is_named(self, option, value):
        given = {"url": "cosmos://a", option: value}
        mode = {"mode": "latest"} if value == "deleted" else {}
        make = partial(connect, ClientConfig("cosmos", {**given, **mode}))
        refusal(ErrorCategory.INVALID_REQUEST, make, option)

    def test_an_application_s_own_client_reads_the_latest_versions(self, world, native):
        world.server.all_versions(False)
        written = world.fill(5)
        with connect(ClientConfig("cosmos", {"mode": "latest"}), native_client=native) as client:
            events = list(client.iterate_changes(ChangeFeedRequest(ADDRESS, Beginning()), until_idle=True))
        assert sorted(markers(events)) == written

    def test_levels_whose_last_names_are_equal_can_be_read(self, make_world):
        world = make_world(1, key=["/t", "/x/t"])
        world.container.upsert_item({"id": "x", "t": "a", "x": {"t": "b"}, "n": 1})
        consumer = reading(world)
        assert consumer.until_idle() == [1]


class TestTrouble:
    def test_two_ranges_stay_after_a_merge(self, world):
        consumer = reading(world, max_page_size=3)
        world.fill(10)
        consumer.read()
        world.server.merge(DATABASE, NAME, "0", "1")
        world.put("k0", "k1", "new")
        consumer.restart().until_idle()
        assert last_of(consumer.events) == held(world)
        assert len(consumer.token) < 2 * 300

    def test_no_position_expires(self, world):
        consumer = reading(world, max_page_size=1)
        written = world.fill(10)
        consumer.read()
        world.trim()
        world.server.advance(10**7)
        consumer.restart().until_idle()
        assert sorted(consumer.markers) == written
