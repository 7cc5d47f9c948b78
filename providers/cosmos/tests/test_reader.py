"""Tests the feed with and without the engine: starts, bounds, splits, merges, expiry, keys and costs."""

import itertools
import json
from datetime import timedelta
from functools import partial

import pytest
from azure.cosmos.partition_key import NonePartitionKeyValue

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeEvent,
    ChangeFeedRequest,
    ChangeType,
    ErrorCategory,
    FromContinuationToken,
    LogicalPartition,
    MulticloudDbKey,
    NotKnown,
    Now,
    ResourceAddress,
    Snapshot,
    connect,
    encode_json,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos import client as client_room
from multiclouddb_cosmos.position import KeyRange
from multiclouddb_cosmos.source import ReaderContext
from multiclouddb_cosmos_emulator import documents, service
from multiclouddb_cosmos_emulator.faults import Fail
from multiclouddb_spi import Continue, Deadline, Drained, PartitionState, ProviderFault, Reached
from multiclouddb_spi.faults import key_digest

from .world import ADDRESS, READ, seconds, soon

pytestmark = pytest.mark.usefixtures("hasty")

BACKFILL = CosmosOptions(backfill=True)


def started(world):
    """Return a feed, and the position at which each of its ranges begins."""
    _, feed = world.feed()
    return feed, {seed.partition_id: seed.cursor for seed in feed.start(Now(), None, soon())}


def drained(reader, size=3, most=500):
    """Fetch until an outcome or the end; return the event ids and the last batch."""
    found = []
    for _ in range(most):
        batch = reader.fetch(size, 1 << 20, 0.0, soon())
        found += [event.event_id for event in batch.events(0, len(batch))]
        if not isinstance(batch.outcome, Continue) or (batch.caught_up and not len(batch)):
            return found, batch
    raise AssertionError("no end")


class TestBounds:
    """A read of the range `(cursor, until]` returns the same events, even after later splits and merges."""

    @pytest.mark.parametrize("size", [3, pytest.param(1, marks=pytest.mark.soak)])
    def test_a_bounded_read_is_repeated_exactly_behind_splits_and_a_merge(self, make_world, size):
        world = make_world(1)
        _, feed = world.feed()
        (seed,) = feed.start(Now(), None, soon())
        for number in range(20):
            world.put(f"k{number}")
            keys = [("upsert", ({"id": f"b{n}", "pk": "batch", "n": 0},)) for n in range(3)]
            world.batch("batch", *keys)
        everything, last = drained(feed.open(seed.partition_id, seed.cursor), 7)
        bounds = [last.end]
        reader = feed.open(seed.partition_id, seed.cursor)
        for _ in range(12):
            batch = reader.fetch(3, 1 << 20, 0.0, soon())
            bounds.append(batch.end)
        before = [drained(feed.open(seed.partition_id, seed.cursor, bound), size)[0] for bound in bounds]
        assert before[0] == everything
        _, second = world.split("0")
        world.split(second)
        world.fill(30)
        for again in range(2):
            for bound, wanted in zip(bounds, before, strict=True):
                found, batch = drained(feed.open(seed.partition_id, seed.cursor, bound), size)
                assert found == wanted
                assert isinstance(batch.outcome, Reached)
                assert feed.compare(batch.end, bound) == 0
            if not again:
                parts = [each["id"] for each in world.partitions()]
                world.merge(*parts[:2])

    def test_a_split_in_the_middle_of_a_bounded_read_changes_nothing(self, make_world):
        world = make_world(1)
        _, feed = world.feed()
        (seed,) = feed.start(Now(), None, soon())
        world.fill(40)
        wanted, last = drained(feed.open(seed.partition_id, seed.cursor))
        reader = feed.open(seed.partition_id, seed.cursor, last.end)
        found = []
        for number in itertools.count():
            batch = reader.fetch(3, 1 << 20, 0.0, soon())
            found += [event.event_id for event in batch.events(0, len(batch))]
            if isinstance(batch.outcome, Reached):
                break
            if number in (2, 5):
                world.split(world.partitions()[0]["id"])
        assert found == wanted

    def test_heads_are_the_ends_of_ranges(self, world):
        feed, seeds = started(world)
        world.fill(20)
        heads = feed.heads(seeds, None, soon())
        assert set(heads) == set(seeds)
        counts = [len(drained(feed.open(name, seeds[name], head.cursor))[0]) for name, head in heads.items()]
        assert sum(counts) == 20
        assert feed.heads(seeds, 5, soon()) == {}

    def test_an_unbounded_read_of_a_split_range_ends_with_its_parts(self, world):
        feed, seeds = started(world)
        name, cursor = next(iter(seeds.items()))
        world.split("0")
        _, batch = drained(feed.open(name, cursor))
        assert isinstance(batch.outcome, Drained)
        assert batch.outcome.complete
        assert {child.cursor[0] for child in batch.outcome.children} == {cursor[0]}


def test_the_refusal_of_a_merge_is_told_and_not_retried(world):
    consumer = world.consumer()
    world.server.merge("shop", "orders", "0", "1")
    assert not refusal(ErrorCategory.PERMANENT_FAILURE, consumer.read, "merge").retryable


class TestSurvey:
    """A range exists while it lies within one partition, and it never has two parents."""

    def test_a_listing_has_the_range_of_each_partition(self, world):
        feed, seeds = started(world)
        world.split("0")
        listed = feed.survey({}, soon())
        assert len(listed.present) == 3
        assert len(seeds.keys() & {part.partition_id for part in listed.present}) == 1
        assert {(part.parents, part.state) for part in listed.present} == {((), PartitionState.OPEN)}
        assert not feed.names_late

    def test_both_ranges_of_a_merged_partition_stay(self, world):
        feed, seeds = started(world)
        world.fill(20)
        world.merge("0", "1")
        survey = feed.survey(seeds, soon())
        assert {(part.partition_id, part.parents, part.state) for part in survey.present} == {
            (name, (), PartitionState.OPEN) for name in seeds
        }
        assert not survey.gone
        assert sum(len(drained(feed.open(name, cursor))[0]) for name, cursor in seeds.items()) == 20

    def test_a_range_that_was_split_is_closed_while_its_position_is_good(self, world):
        feed, seeds = started(world)
        world.split("0")
        survey = feed.survey(seeds, soon())
        assert sorted(part.state.value for part in survey.present) == ["closed", "open"]
        assert {part.partition_id for part in survey.present} == seeds.keys()
        assert not survey.gone

    def test_an_expired_range_goes_on_at_its_oldest_position(self, world):
        feed, seeds = started(world)
        lost, other = seeds
        world.fill(20)
        world.trim()
        world.fill(20)
        survey = feed.survey(seeds, soon(), expired={lost})
        oldest = {part.partition_id: part.oldest for part in survey.present}
        assert oldest.keys() == seeds.keys()
        assert oldest[other] is None  # nobody has looked: trial reads cost calls
        assert feed.compare(oldest[lost], seeds[lost]) == 1
        assert 0 < len(drained(feed.open(lost, oldest[lost]))[0]) < 20
        assert not survey.gone

    def test_an_expired_range_that_was_split_is_gone_and_its_parts_follow(self, world):
        feed, seeds = started(world)
        world.fill(20)
        world.trim()
        world.split("0")
        survey = feed.survey(seeds, soon(), expired=set(seeds))
        (gone,) = survey.gone
        assert survey.gone[gone] is None
        present = {part.partition_id: part.parents for part in survey.present}
        assert [parents for name, parents in present.items() if name not in seeds] == [(gone,), (gone,)]
        assert present.keys() & seeds.keys() == seeds.keys() - {gone}
        assert all(part.oldest is not None for part in survey.present)

    def test_the_oldest_position_is_not_before_what_is_wanted(self, world):
        feed, seeds = started(world)
        world.fill(30)
        world.server.advance(3600)
        since = world.server.clock.now()
        world.server.advance(60)
        world.fill(30)
        survey = feed.survey(seeds, soon(), expired=set(seeds), since=since)
        rest = [drained(feed.open(part.partition_id, part.oldest))[0] for part in survey.present]
        assert sum(map(len, rest)) == 30


class TestMode:
    """Tests which settings the account needs, and which behaviour the caller must opt into."""

    def test_an_account_without_the_mode_or_with_another_key_is_named(self, world, monkeypatch):
        world.server.all_versions(False)
        read = ChangeFeedRequest(ADDRESS, Now())
        words = ("enableAllVersionsAndDeletesChangeFeed", "mode='latest'", "deletes")
        refusal(ErrorCategory.INVALID_REQUEST, lambda: world.client().read_changes(read), *words)
        nowhere = ChangeFeedRequest(ResourceAddress(collection="orders"), Now())
        refusal(ErrorCategory.INVALID_REQUEST, lambda: world.client().read_changes(nowhere))
        monkeypatch.setenv("AZURE_COSMOS_KEY", "d3Jvbmc=")
        client = world.client()
        refusal(ErrorCategory.AUTHENTICATION_FAILED, lambda: client.read_changes(read), "AZURE_COSMOS_KEY")

    @pytest.mark.parametrize(
        "text", ["Something else.", "Change Feed 'All Versions and Deletes' mode must be enabled."]
    )
    def test_a_400_is_no_expiry_if_the_position_is_still_good(self, lone, text):
        """The service answers 400 too if one gateway has lost the mode."""
        consumer = lone.consumer()
        lone.fill(3)
        times = None if "else" in text else 1
        lone.server.faults.add(Fail(400, message=text), READ, times=times)
        refusal(ErrorCategory.INVALID_REQUEST, consumer.read, text if times is None else "enable")


@pytest.mark.parametrize("listed", [[], ["00-80"], ["80-FF"], ["-80", "90-FF"]])
def test_a_list_that_lacks_partitions_does_not_say_that_they_were_read(lone, monkeypatch, listed):
    _, feed = lone.feed()
    (seed,) = feed.start(Now(), None, soon())
    lone.fill(3)
    _, last = drained(feed.open(seed.partition_id, seed.cursor))
    until = last.end
    _, feed = lone.feed()
    ranges = [KeyRange(*each.split("-")) for each in listed]
    monkeypatch.setattr(client_room.Calls, "ranges", lambda *_: ranges)
    for bound in (None, until):
        reader = feed.open(seed.partition_id, seed.cursor, bound)
        with pytest.raises(ProviderFault, match="does not contain all keys"):
            reader.fetch(10, 1 << 20, 0.0, soon())


class TestPlans:
    """A feed can be distributed to several processes only if each token covers its own part of the
    changes."""

    def test_a_backfill_is_not_spread_over_processes(self, world):
        world.fill(5)
        client = world.client()
        begin = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=BACKFILL)
        token = client.read_changes(begin).continuation_token
        for start in (Beginning(), FromContinuationToken(token)):
            request = ChangeFeedRequest(ADDRESS, start, provider_options=BACKFILL)
            plan = partial(client.plan_partitions, request)
            refusal(ErrorCategory.INVALID_REQUEST, plan, "PhysicalPartition")

    @pytest.mark.parametrize("late", [-5, 5])
    def test_a_start_time_is_exact_although_the_service_is_not(self, world, monkeypatch, late):
        """The service may begin some seconds too early or too late."""
        exact = documents._since
        monkeypatch.setattr(
            documents, "_since", lambda headers: None if exact(headers) is None else exact(headers) + late
        )
        world.fill(4)
        world.server.advance(3)
        start, wanted = AtTime(world.server.clock.now()), world.fill(4)
        world.server.advance(60)
        consumer = world.consumer(start, provider_options=BACKFILL)
        consumer.until_idle()
        assert sorted(consumer.markers) == sorted(wanted)


def test_now_is_not_later_than_its_request(lone, monkeypatch):
    """While the answer is on its way, other answers may tell a later time."""
    _, feed = lone.feed()
    began, end, ended = feed.clock(soon()), ReaderContext.end, []

    def slow(source, *args):
        ended.append(end(source, *args))
        return ended[-1]

    monkeypatch.setattr(ReaderContext, "end", slow)
    monkeypatch.setattr(client_room.Calls, "now", lambda _: began + timedelta(minutes=len(ended)))
    (seed,) = feed.start(Now(), None, soon())
    assert feed.describe(seed.cursor).time <= began


class TestKeys:
    """Tests partition keys with one level and with several levels."""

    def test_prefixes_of_a_hierarchical_key(self, make_world):
        world = make_world(3, key=["/tenant", "/user", "/session"])
        key = {"tenant": "t1", "user": "u1", "session": "s1"}
        prefixes = [dict(list(key.items())[:depth]) for depth in (1, 2, 3)]
        consumers = [world.consumer(scope=LogicalPartition(MulticloudDbKey(each))) for each in prefixes]
        for tenant, user, session in itertools.product(("t1", "t2"), ("u1", "u2"), ("s1", "s2")):
            item = {"id": "x", "tenant": tenant, "user": user, "session": session, "n": 1}
            world.container.upsert_item(item)
            if user == "u2":
                world.split(world.partitions()[-1]["id"])
        for consumer in consumers:
            consumer.until_idle()
        assert [len(consumer.events) for consumer in consumers] == [4, 2, 1]
        (event,) = consumers[-1].events
        assert event.key.partition_key == key
        assert event.key.sort_key == {"id": "x"}

    def test_equal_numbers_are_one_key(self, lone):
        consumer = lone.consumer()
        for value in (1, 1.0):
            lone.container.upsert_item({"id": "x", "pk": value, "n": 1})
        consumer.until_idle()
        first, second = consumer.events
        assert first.key == second.key

    def test_a_prefix_that_is_split_is_read_on(self, make_world):
        world = make_world(1, key=["/tenant", "/user"])
        consumer = world.consumer(scope=LogicalPartition(MulticloudDbKey({"tenant": "t"})))
        for number in range(40):
            world.container.upsert_item({"id": "x", "tenant": "t", "user": f"u{number}", "n": number})
        world.split("0", boundary=world.server.effective_key("t", "u7", kind="MultiHash"))
        consumer.until_idle()
        assert sorted(consumer.markers) == list(range(40))

    @pytest.mark.parametrize("components", [{"x": 1}, {"pk": 1, "user": 2, "tenant": 3}, {"user": "u"}])
    def test_a_key_that_is_none_of_the_container(self, make_world, components):
        world = make_world(1, key=["/tenant", "/user"])
        request = ChangeFeedRequest(ADDRESS, Now(), scope=LogicalPartition(MulticloudDbKey(components)))
        refusal(ErrorCategory.INVALID_REQUEST, lambda: world.client().read_changes(request), "tenant")

    @pytest.mark.parametrize("text", ["a" * 91, "a" * 92, "\U0001f600" * 200])
    def test_a_long_key_with_the_first_version_of_the_hash(self, make_world, text):
        world = make_world(2, version=1)
        consumer = world.consumer(scope=LogicalPartition(MulticloudDbKey({"pk": text})))
        for number in range(3):
            world.container.upsert_item({"id": "x", "pk": text, "n": number})
            world.container.upsert_item({"id": "x", "pk": text + "x", "n": 9})
        consumer.until_idle()
        assert consumer.markers == [0, 1, 2]
        world.container.delete_item("x", text)
        consumer.restart().until_idle()
        assert consumer.events[-1].key == MulticloudDbKey({"pk": text, "id": "x"}, 1)

    @pytest.mark.parametrize("paths", [["/a/id", "/b/id"], ["/t", "/x/t", "/s"]])
    def test_levels_whose_last_names_are_equal(self, make_world, paths):
        """A delete names the components of its key by the last names of their paths."""
        world = make_world(1, key=paths)
        refusal(ErrorCategory.UNSUPPORTED_CAPABILITY, world.consumer, *(path[1:] for path in paths[:2]))

    def test_a_key_on_every_kind_of_change(self, world):
        consumer = world.consumer()
        for key in ("a", 7, 1.5, True, None):
            world.container.upsert_item({"id": "x", "pk": key, "n": 1})
            world.container.delete_item("x", key)
        consumer.until_idle()
        assert len({event.key for event in consumer.events}) == 5
        assert {event.type for event in consumer.events} == {ChangeType.CREATE, ChangeType.DELETE}

    def test_two_deletes_of_a_key_in_one_transaction_are_two_events(self, make_world):
        world = make_world(1)
        consumer = world.consumer()
        item = {"id": "x", "pk": "a", "n": 1}
        world.batch("a", ("create", (item,)), ("delete", ("x",)), ("create", (item,)), ("delete", ("x",)))
        consumer.until_idle()
        assert [event.type for event in consumer.events] == 2 * [ChangeType.CREATE, ChangeType.DELETE]
        assert len({event.event_id for event in consumer.events}) == 4

    def test_an_object_is_no_key(self, make_world):
        """The service treats an item whose key is an object as an item without a key."""
        value = {"a": 1}
        world = make_world(1)
        consumer = world.consumer()
        world.container.upsert_item({"id": "x", "pk": value, "n": 1})
        world.container.delete_item("x", NonePartitionKeyValue)
        consumer.until_idle()
        assert [event.key.components for event in consumer.events] == 2 * [{"id": "x"}]
        assert consumer.events[0].new_item_state == {"id": "x", "pk": value, "n": 1}

    def test_a_nested_path_and_a_document_without_its_key(self, make_world):
        world = make_world(1, key="/a/b")
        consumer = world.consumer()
        world.container.upsert_item({"id": "x", "a": {"b": "deep"}, "n": 1})
        world.container.delete_item("x", "deep")
        world.container.upsert_item({"id": "y", "n": 2})
        consumer.until_idle()
        assert [event.key.components for event in consumer.events] == [
            {"a/b": "deep", "id": "x"},
            {"a/b": "deep", "id": "x"},
            {"id": "y"},
        ]


class TestTokensAndCosts:
    """Tests that tokens are small and that reported costs are correct."""

    @pytest.mark.parametrize("partitions", [10, pytest.param(100, marks=pytest.mark.soak)])
    def test_a_token_has_at_most_a_hundred_bytes_a_range(self, make_world, partitions):
        world = make_world(partitions)
        consumer = world.consumer(Beginning(), provider_options=BACKFILL)
        world.fill(partitions * 3)
        consumer.until_idle()
        assert len(consumer.token) <= 100 * partitions

    def test_request_units_are_told(self, world):
        consumer = world.consumer()
        world.fill(5)
        assert consumer.read().diagnostics.native_charge >= 1

    def test_request_units_of_all_parts_of_a_range_are_told(self, make_world, monkeypatch):
        world = make_world(1)
        feed, seeds = started(world)
        ((name, cursor),) = seeds.items()
        world.fill(9)
        head = feed.heads(seeds, None, soon())[name]
        world.split("0")
        answered, read = [], ReaderContext.read

        def told(self, *args):
            answered.append(read(self, *args))
            return answered[-1]

        monkeypatch.setattr(ReaderContext, "read", told)
        reader = feed.open(name, cursor, head.cursor)
        reader.fetch(100, 1 << 20, 0.0, soon())  # is told that the range was split
        batch = reader.fetch(100, 1 << 20, 0.0, soon())
        assert len(answered) == batch.requests == 2
        assert batch.charge == sum(answer.charge for answer in answered)

    def test_pause_of_many_idle_ranges_fits_the_time_limit(self, make_world):
        feed, seeds = started(make_world(1))
        ((name, cursor),) = seeds.items()
        readers = [feed.open(name, cursor) for _ in range(2000)]
        batch = readers[0].fetch(100, 1 << 20, 0.0, Deadline.after(8.0))
        assert batch.caught_up
        assert 1.0 < batch.poll_after <= 2.0

    @pytest.mark.parametrize(("refused", "more"), [(0, 0), (3, 16)])
    def test_a_start_asks_each_range_once_and_then_for_what_is_missing(self, make_world, refused, more):
        world = make_world(20)
        client = world.client()
        world.server.journal.clear()
        if refused:
            world.server.faults.add(Fail(429, 3200, 0.01), READ, after=10, times=refused)
        client.read_changes(ChangeFeedRequest(ADDRESS, Now()))
        assert world.server.journal.count(READ) <= 2 * 20 + more

    def test_an_application_s_own_client_stays_open(self, world, native):
        with connect(world.config(), native_client=native) as client:
            consumer = world.consumer(client=client)
            written = world.fill(5)
            consumer.until_idle()
        assert sorted(consumer.markers) == written
        assert [each["id"] for each in native.list_databases()] == ["shop"]

    def test_nothing_is_written_and_the_client_of_the_application_stays_as_it_is(self, world, native):
        def state():
            made = native.client_connection
            parts = (made.connection_policy, made.connection_policy.RetryOptions)
            return made.pipeline_client._pipeline._transport, repr([*map(vars, parts), made.default_headers])

        before, key, written = state(), MulticloudDbKey({"pk": "k0", "id": "k0"}, 1), world.fill(5)
        entries = len(world.server.journal.entries())
        with connect(world.config(), native_client=native) as client:
            scan = world.consumer(Snapshot(), client)
            scan.until_idle()
            assert sorted(scan.markers) == written
            assert client.lookup(ADDRESS, [key])[key].new_item_state["id"] == "k0"
            assert client.list_physical_partitions(ADDRESS)
        sent = world.server.journal.entries()[entries:]
        assert {each.method for each in sent} == {"GET"}
        assert state() == before

    def test_a_page_that_is_no_json_is_not_taken_for_an_empty_one(self, world, monkeypatch):
        consumer = world.consumer()
        world.fill(5)
        whole = client_room._parsed
        monkeypatch.setattr(client_room, "_parsed", lambda text: whole(text[: len(text) // 2]))
        refusal(ErrorCategory.TRANSIENT_FAILURE, lambda: consumer.read(seconds(1)))

    @pytest.mark.parametrize("options", [None, CosmosOptions(mode="latest")], ids=["all_versions", "latest"])
    def test_a_text_that_is_no_utf_8_is_a_record_that_can_be_skipped(self, lone, monkeypatch, options):
        """Azure/azure-sdk-for-python PR 47008 (2026-05): one such text made a page unreadable."""
        consumer = lone.consumer(provider_options=options or CosmosOptions())
        lone.put("a")
        lone.put("b", x="CUT", _lsn=1)
        lone.put("c")
        whole = client_room._parsed
        monkeypatch.setattr(client_room, "_parsed", lambda text: whole(text.replace(b"CUT", b"C\xffT")))
        told = lambda: [consumer.read(seconds(2)) for _ in range(9)]  # noqa: E731
        error = refusal(ErrorCategory.PROVIDER_ERROR, told, "no UTF-8")
        consumer.start = FromContinuationToken(error.detail.skip_token)
        consumer.until_idle()
        assert consumer.markers == [1, 3]

    def test_a_look_up_of_a_text_that_is_no_utf_8_says_that_it_does_not_know(self, lone, monkeypatch):
        lone.put("a")
        lone.put("b", x="CUT")
        read = service._CALLS["ReadItem"]

        def cut(call):
            reply = read(call)
            reply.body = reply.body.replace(b"CUT", b"C\xffT")
            return reply

        monkeypatch.setattr(service, "_CALLS", {**service._CALLS, "ReadItem": cut})
        keys = [MulticloudDbKey({"pk": each, "id": each}, 1) for each in "ab"]
        found = lone.client().lookup(ADDRESS, keys, options=seconds(5))
        assert [type(found[key]) for key in keys] == [ChangeEvent, NotKnown]

    def test_half_a_surrogate_pair_does_not_hide_its_page(self, world):
        assert client_room._parsed(b'{"Documents":[{"a":"\\ud800"}]}')["Documents"] == [{"a": "\ud800"}]

    @pytest.mark.parametrize("where", ["value", "name", "key"])
    @pytest.mark.parametrize("start", [Now(), Beginning(), Snapshot()], ids=["feed", "beginning", "snapshot"])
    def test_half_a_surrogate_pair_is_a_record_that_can_be_skipped(self, lone, monkeypatch, start, where):
        settings = {"provider_options": CosmosOptions(mode="latest")} if start == Beginning() else {}
        consumer = lone.consumer(start, **settings)
        if start == Now():
            consumer.read()
        lone.put("a")
        fields = {"value": {"x": "CUT"}, "name": {"CUT": 1}, "key": {}}
        lone.put("bCUT" if where == "key" else "b", **fields[where])
        lone.put("c")
        whole = client_room._parsed
        monkeypatch.setattr(client_room, "_parsed", lambda text: whole(text.replace(b"CUT", b"\\ud83d")))

        def drain():
            while not (consumer.pages and consumer.pages[-1].idle and 3 in consumer.markers):
                consumer.read()

        error = refusal(ErrorCategory.PROVIDER_ERROR, drain, "surrogate")
        # By the digest, `verify` knows which row it may not judge; a key that is damaged itself has none.
        digest = key_digest(encode_json({"pk": "b", "id": "b"}).decode())
        assert (digest in error.message) == (where != "key")
        consumer.start = FromContinuationToken(error.detail.skip_token)
        drain()
        assert sorted(consumer.markers) == [1, 3]

    @pytest.mark.parametrize("where", ["value", "name"])
    def test_a_look_up_of_half_a_surrogate_pair_says_that_it_does_not_know(self, lone, monkeypatch, where):
        lone.put("a")
        lone.put("b", **{"value": {"x": "CUT"}, "name": {"CUT": 1}}[where])
        keys = [MulticloudDbKey({"pk": each, "id": each}, 1) for each in "abc"]
        plain = client_room.Calls.item

        def item(*asked):
            found = plain(*asked)
            if found is None:
                return None
            return json.loads(json.dumps(found[0]).replace("CUT", "\\ud83d")), found[1]

        monkeypatch.setattr(client_room.Calls, "item", item)
        found = lone.client().lookup(ADDRESS, keys)
        assert [type(found[key]) for key in keys] == [ChangeEvent, NotKnown, type(None)]

    def test_a_number_has_one_type_whatever_else_is_on_its_page(self, world):
        """Both parsers keep the digits of a whole number beyond 64 bits."""
        texts = (b'"x"', b'"\\ud800"')
        pages = [
            client_room._parsed(b'{"Documents":[{"n":[100000000000000000000,7],"a":%b}]}' % each)
            for each in texts
        ]
        numbers = [page["Documents"][0]["n"] for page in pages]
        assert list(map(repr, numbers)) == ["[100000000000000000000, 7]"] * 2
