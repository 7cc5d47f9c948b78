"""Tests profiles of the store: refused requests, precision, and the single partition of the MongoDB
profile."""

import pickle
import random
from datetime import UTC, datetime, timedelta

import pytest

import multiclouddb_api as api
from multiclouddb_conformance.refusals import refused
from multiclouddb_embedded import EmbeddedOptions, Put
from multiclouddb_embedded.profile import PLAIN, PROFILES
from multiclouddb_embedded.provider import EmbeddedPlugin

from .conftest import faulty

NATIVE, EMULATED, UNSUPPORTED = api.Support.NATIVE, api.Support.EMULATED, api.Support.UNSUPPORTED
BEGINNING = api.Capability.CHANGE_FEED_BEGINNING
POINT_IN_TIME = api.Capability.CHANGE_FEED_POINT_IN_TIME
LOGICAL = api.Capability.CHANGE_FEED_LOGICAL_PARTITION_SCOPE
OLD = api.Capability.CHANGE_FEED_OLD_ITEM_STATE
GATES = {
    # profile: beginning, point in time, logical partition, old state
    "": (NATIVE, NATIVE, NATIVE, NATIVE),
    "dynamo": (NATIVE, NATIVE, UNSUPPORTED, NATIVE),
    "spanner": (NATIVE, NATIVE, UNSUPPORTED, NATIVE),
    "cosmos": (EMULATED, EMULATED, NATIVE, UNSUPPORTED),
    "mongo": (NATIVE, NATIVE, NATIVE, NATIVE),
}
NAMES = sorted(GATES)
ADDRESS = api.ResourceAddress("main", "items")
BACKFILL = EmbeddedOptions(backfill=True)
LOST = api.ErrorCategory.CHECKPOINT_EXPIRED


def profile_of(name):
    return PROFILES[name] if name else PLAIN


@pytest.fixture
def under(world):
    """Provide a store that is read under one profile."""

    def under(name):
        world.provider.close()
        world.provider = EmbeddedPlugin(profile_of(name)).connect(api.ClientConfig("embedded"), world.store)
        return world

    return under


@pytest.fixture
def open_client(store):
    """Open a client with a profile."""
    clients = []

    def open_client(name):
        connection = {"profile": name} if name else {}
        clients.append(api.connect(api.ClientConfig("embedded", connection), native_client=store))
        return clients[-1]

    yield open_client
    for client in clients:
        client.close()


def request(start, **parts):
    return api.ChangeFeedRequest(ADDRESS, start, **parts)


def resume(page, **parts):
    return request(api.FromContinuationToken(page.continuation_token), **parts)


class TestNaming:
    @pytest.mark.parametrize("name", sorted(PROFILES))
    def test_a_name_in_the_url_or_in_the_options_is_the_profile(self, store, name):
        wanted, path = profile_of(name).capabilities, store.path
        for connection in (
            {"url": f"embedded://{path}?profile={name}"}, {"url": f"embedded://{path}", "profile": name},
            {"path": path, "profile": name},
        ):  # fmt: skip
            with api.connect(pickle.loads(pickle.dumps(api.ClientConfig("embedded", connection)))) as client:
                assert client.capabilities() == wanted

    def test_a_plugin_has_a_profile_for_connections_without(self, store):
        plugin = EmbeddedPlugin(PROFILES["mongo"])
        assert plugin.capabilities() == PROFILES["mongo"].capabilities
        for connection, wanted in (({}, "mongo"), ({"profile": "dynamo"}, "dynamo")):
            config = api.ClientConfig("embedded", {"path": store.path, **connection})
            provider = plugin.connect(config, None)
            assert provider.capabilities() == PROFILES[wanted].capabilities
            provider.close()

    def test_what_is_none_is_told_with_a_suggestion(self, store):
        for connection, words in (
            ({"profile": "dynamodb"}, ["'profile'", "'dynamodb'", "did you mean 'dynamo'?"]),
            ({"profile": "oracle"}, ["'oracle'", "cosmos, dynamo, mongo, spanner"]),
            ({"profile": ""}, ["'profile'"]),
            ({"profile": None}, ["'profile'", "None"]),
            ({"profile": 3}, ["'profile'", "3"]),
            ({"profle": "dynamo"}, ["'profle'", "did you mean 'profile'?"]),
        ):
            with refused(api.ErrorCategory.INVALID_REQUEST, *words):
                api.connect(api.ClientConfig("embedded", {"path": store.path, **connection}))


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_capabilities(name):
    """What is refused under each profile is tested by `test_us8_profiles.py`."""
    told = profile_of(name).capabilities
    assert tuple(told[each].support for each in (BEGINNING, POINT_IN_TIME, LOGICAL, OLD)) == GATES[name]
    assert told.is_supported(api.Capability.CHANGE_FEED)
    for each in (
        api.Capability.CHANGE_FEED_DATABASE_SCOPE,
        api.Capability.CHANGE_FEED_CLUSTER_SCOPE,
        api.Capability.RUN_COMMAND,
    ):
        assert told[each].support is UNSUPPORTED


def test_on_cosmos_only_the_start_needs_the_option(store, open_client):
    store.create_collection("items")
    store.put("items", "a", {"n": 1})
    client = open_client("cosmos")
    page = client.read_changes(request(api.Beginning(), provider_options=BACKFILL))
    assert [event.backfilled for event in page.events] == [False]
    store.put("items", "b", {"n": 2})
    for options in (BACKFILL, EmbeddedOptions(), None):
        assert len(client.read_changes(resume(page, provider_options=options)).events) == 1


class TestPrecision:
    @pytest.mark.parametrize("name", NAMES)
    def test_at_time_is_never_late_and_early_by_less_than_the_precision(self, under, store, clock, name):
        store.create_collection("items", partitions=1)
        clock.moment = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
        for n in range(31):
            store.put("items", n, {"n": n})
            clock.tick(milliseconds=100)
        world = under(name)
        feed = world.feed(options=BACKFILL)
        coarse = name in ("cosmos", "dynamo", "mongo")
        for micros in (0, 1, 999_999, 1_000_000, 1_000_001, 1_500_000, 2_999_999):
            moment = datetime(2026, 1, 1, 12, tzinfo=UTC) + timedelta(microseconds=micros)
            (events,) = world.read_all(feed, api.AtTime(moment)).values()
            exact = -(-micros // 100_000)
            wanted = micros // 1_000_000 * 10 if coarse else exact
            assert [event.new_item_state["n"] for event in events] == list(range(wanted, 31))
            assert wanted <= exact

    def test_a_second_that_was_trimmed_in_part_starts_at_what_is_left(self, under, store, clock):
        store.create_collection("items", partitions=1)
        moments = []
        for n in range(10):
            moments.append(clock.moment)
            store.put("items", n, {"n": n})
            clock.tick(milliseconds=100)
        store.trim("items", before=moments[5])
        world = under("mongo")
        feed = world.feed()
        for n in range(5, 10):
            assert [
                event.new_item_state["n"] for event in world.read_all(feed, api.AtTime(moments[n]))["0"]
            ] == [*range(5, 10)]
        with faulty(LOST, "trimmed"):
            world.start(feed, api.AtTime(moments[4]))


class TestOnePartition:
    @pytest.fixture
    def items(self, under, store):
        store.create_collection("items", partitions=4, images="new_and_old")
        return under("mongo")

    def write(self, store, numbers):
        for n in numbers:
            store.put("items", f"k{n % 7}", {"n": n})

    def numbers(self, events):
        return [event.new_item_state["n"] for event in events]

    def test_bytes_bound_a_batch_behind_its_first_row(self, items, store):
        store.create_collection("others")
        for n in range(10):
            store.put("items", n, {"n": n, "text": "x" * 10_000})
            store.put("others", n, {"n": -n})
        reader = items.feed().open("0", [0, 0])
        assert [len(items.fetch(reader, nbytes=most)) for most in (1, 75_000, 3 << 20)] == [1, 3, 6]

    def test_heads_count_exactly(self, items, store):
        self.write(store, range(50))
        store.split("items", "p1")
        self.write(store, range(50, 80))
        store.trim("items", max_count=60)
        for scope, total in (
            ({}, 60),
            ({"scope": api.LogicalPartition(api.MulticloudDbKey({"id": "k3"}))}, None),
        ):
            feed = items.feed(**scope)
            (seed,) = items.start(feed)
            cursor, left = seed.cursor, items.drain(feed.open("0", seed.cursor))[0]
            assert total in (None, len(left))
            head = feed.heads({"0": cursor}, None, items.deadline())["0"]
            assert head.records == len(left)
            while left:
                head = feed.heads({"0": cursor}, 7, items.deadline())["0"]
                events, _ = items.drain(feed.open("0", cursor, head.cursor))
                assert len(events) == head.records == min(7, len(left))
                assert events == left[:7]
                cursor, left = head.cursor, left[7:]
            assert feed.heads({"0": cursor}, 7, items.deadline())["0"].records == 0

    def test_one_partition_key_over_the_whole_lineage(self, items, store):
        self.write(store, range(40))
        store.split("items", "p0")
        store.split("items", "p2")
        self.write(store, range(40, 80))
        for k in range(7):
            feed = items.feed(scope=api.LogicalPartition(api.MulticloudDbKey({"id": f"k{k}"})))
            (seed,) = items.start(feed)
            for most in (1, 3, 100):
                events, _ = items.drain(feed.open("0", seed.cursor), most)
                assert self.numbers(events) == list(range(k, 80, 7))

    def test_trimmed_is_expired_and_goes_on_at_the_oldest(self, items, store):
        self.write(store, range(10))
        feed = items.feed()
        (old,) = items.start(feed)
        reader = feed.open("0", old.cursor)
        items.fetch(reader, 2)
        store.trim("items", max_count=4)
        with faulty(LOST, "trimmed"):
            items.fetch(feed.open("0", old.cursor))
        with faulty(LOST, "trimmed"):
            items.fetch(reader)
        (part,) = feed.survey({"0": old.cursor}, items.deadline(), expired={"0"}).present
        assert self.numbers(items.drain(feed.open("0", part.oldest))[0]) == [6, 7, 8, 9]
        assert [seed.cursor for seed in items.start(feed)] == [part.oldest]

    def test_nothing_is_lost_in_random_lives(self, items, store):
        """Reads return exactly the changes in the log, through all splits and merges."""
        lots = random.Random(7)
        feed = items.feed()
        (seed,) = items.start(feed)
        cursor, written = seed.cursor, 0
        for _ in range(60):
            deed = lots.random()
            open_ones = sorted(store.partitions("items"), key=lambda each: each.low)
            if deed < 0.15:
                store.split("items", lots.choice(open_ones).partition_id)
            elif deed < 0.3 and len(open_ones) > 1:
                place = lots.randrange(len(open_ones) - 1)
                store.merge("items", open_ones[place].partition_id, open_ones[place + 1].partition_id)
            elif deed < 0.7:
                count = lots.randrange(1, 12)
                store.batch(
                    "items", [Put(f"k{lots.randrange(30)}", {"n": written + n}) for n in range(count)]
                )
                written += count
            else:
                reader = feed.open("0", cursor)
                batch = items.fetch(reader, lots.choice([1, 4, 1000]))
                (first,) = items.sql("SELECT count(*) FROM log WHERE seq <= ?", cursor[0])[0]
                assert self.numbers(batch.events(0, len(batch))) == list(range(first, first + len(batch)))
                cursor = batch.cursor_after(len(batch))
                if batch.caught_up:
                    assert first + len(batch) == written
        assert written > 50
        survey = feed.survey({"0": [0, 0]}, items.deadline())
        assert ([part.partition_id for part in survey.present], survey.gone) == (["0"], {})
        assert {event.partition_id for event in batch.events(0, len(batch))} <= {feed.public_id("0")}


class TestTokens:
    """A position is a place in the log, but MongoDB's profile has positions of its own."""

    def test_they_are_good_under_the_others_but_mongo(self, store, open_client):
        store.create_collection("items")
        names = ["", "dynamo", "spanner", "cosmos"]
        for n, (name, other) in enumerate([(a, b) for a in names for b in names]):
            page = open_client(name).read_changes(request(api.Now()))
            store.put("items", "a", {"n": n})
            found = open_client(other).read_changes(resume(page)).events
            assert [event.new_item_state for event in found] == [{"n": n}]

    @pytest.mark.parametrize(("name", "other"), [("mongo", ""), ("", "mongo"), ("spanner", "mongo")])
    def test_mongo_s_are_refused_elsewhere_and_the_others_there(self, store, open_client, name, other):
        store.create_collection("items", partitions=1)
        client = open_client(name)
        page = client.read_changes(request(api.Now()))
        (partition,) = client.list_physical_partitions(ADDRESS)
        store.put("items", "a", {})
        with refused(api.ErrorCategory.INVALID_REQUEST, "never had a partition"):
            open_client(other).read_changes(resume(page))
        with refused(api.ErrorCategory.INVALID_REQUEST, "partition"):
            open_client(other).read_changes(request(api.Beginning(), scope=api.PhysicalPartition(partition)))
        assert len(client.read_changes(resume(page)).events) == 1
