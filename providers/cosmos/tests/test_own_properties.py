"""Tests items whose own properties have the names of the service's properties.

In the feed of latest versions, the service adds `_lsn` to every item, also to one that has it already:
microsoft/kafka-connect-cosmosdb issue 46, Azure/azure-sdk-for-java issue 18091.
"""

import json
import re

import attrs
import pytest

from multiclouddb_api import (
    AtTime,
    Beginning,
    ChangeFeedRequest,
    ErrorCategory,
    LogicalPartition,
    MulticloudDbError,
    MulticloudDbKey,
    Now,
    Snapshot,
    connect,
)
from multiclouddb_cosmos import CosmosOptions
from multiclouddb_cosmos.client import _parsed
from multiclouddb_cosmos.records import LSN, SYSTEM, Doubled, told_apart
from multiclouddb_cosmos_emulator import feed as emulator

from .test_keys import drained
from .world import ADDRESS, soon

pytestmark = pytest.mark.usefixtures("hasty")
LATEST = CosmosOptions(mode="latest")
VALUES = [10**12, -1, 0, 1, 3, "a text", "7", None, 2.5, [1], {"_lsn": 4}, True, "é"]


@pytest.fixture
def own(make_world):
    """Write items, most of which have a property `_lsn`, and return what was written, by id."""
    world = make_world(1)
    written = {}
    for number, value in enumerate([*VALUES, *VALUES]):
        item = {"id": f"i{number:02}", "pk": "p", "v": number, "_lsn": value}
        if number % 3 == 2:
            del item["_lsn"]
        world.container.upsert_item(item)
        written[item["id"]] = item
    return world, written


def states(events):
    return {event.key["id"]: event.new_item_state for event in events}


class TestLatest:
    def test_the_item_and_its_order_are_right(self, own):
        world, written = own
        request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST)
        events = list(world.client().iterate_changes(request, until_idle=True))
        assert states(events) == written
        assert [event.key["id"] for event in events] == sorted(written)
        assert [int(event.order_key) for event in events] == list(range(2, len(written) + 2))
        assert {type(event.new_item_state) for event in events} == {dict}

    @pytest.mark.parametrize("size", [1, 2, 5])
    def test_every_token_continues_at_the_service_s_position(self, own, size):
        world, written = own
        request = {"provider_options": LATEST, "max_page_size": size}
        consumer = world.consumer(Beginning(), **request)
        ids = []
        for _ in range(len(written) + 5):
            page = consumer.read()
            ids += [event.key["id"] for event in page.events]
            if page.idle:
                break
            consumer.restart()
        assert ids == sorted(written)

    def test_other_starts(self, own, monkeypatch):
        world, written = own
        consumer = world.consumer(Now(), provider_options=LATEST)
        assert not drained(consumer)
        world.container.upsert_item({"id": "new", "pk": "p", "_lsn": 1})
        assert states(drained(consumer)) == {"new": {"id": "new", "pk": "p", "_lsn": 1}}
        past = world.server.clock.now().replace(year=2020)
        request = ChangeFeedRequest(ADDRESS, AtTime(past), provider_options=LATEST)
        assert states(world.client().iterate_changes(request, until_idle=True)).keys() == {*written, "new"}

    def test_a_partition_key_and_a_marker(self, own):
        world, written = own
        scope = LogicalPartition(MulticloudDbKey({"pk": "p"}))
        options = CosmosOptions(mode="latest", delete_marker="/gone")
        world.container.upsert_item({"id": "gone", "pk": "p", "gone": True, "_lsn": 5})
        request = ChangeFeedRequest(ADDRESS, Beginning(), scope=scope, provider_options=options)
        *events, last = world.client().iterate_changes(request, until_idle=True)
        assert states(events) == written
        assert last.old_item_state == {"id": "gone", "pk": "p", "gone": True, "_lsn": 5}

    def test_arrow(self, own):
        world, written = own
        _, feed = world.feed(options=LATEST)
        (seed,) = feed.start(Beginning(), None, soon())
        batch = feed.open(seed.partition_id, seed.cursor).fetch(1000, 10**7, 0.0, soon())
        texts = batch.arrow(0, len(batch)).column("new_item_state").to_pylist()
        assert [f'"_lsn":{"1" if item["_lsn"] == 1 else ""}' in text
                for text, item in zip(texts, written.values(), strict=True) if "_lsn" in item]  # fmt: skip

    def test_a_client_of_the_application(self, world, native):
        item = {"id": "a", "pk": "p", "_lsn": 10**12, "v": 1}
        for number in range(3):
            world.container.upsert_item({**item, "id": f"a{number}"})
        with connect(world.config(), native_client=native) as client:
            request = ChangeFeedRequest(ADDRESS, Beginning(), provider_options=LATEST, include_native=True)
            events = list(client.iterate_changes(request, until_idle=True))
        assert states(events) == {f"a{number}": {**item, "id": f"a{number}"} for number in range(3)}
        assert [int(event.order_key) for event in events] == [event.native["_lsn"] for event in events]
        assert [event.native["_lsn"] for event in events] == [2, 3, 4]

    def test_the_service_may_write_its_own_first(self, own, monkeypatch):
        world, written = own
        read_feed = emulator.read_feed

        def first(container, request):
            page = read_feed(container, request)
            return page if request.all_versions else turned(page)

        monkeypatch.setattr("multiclouddb_cosmos_emulator.documents.read_feed", first)
        request = ChangeFeedRequest(ADDRESS, Beginning(), max_page_size=1, provider_options=LATEST)
        events = list(world.client().iterate_changes(request, until_idle=True))
        assert [event.key["id"] for event in events] == sorted(written)

    @pytest.mark.parametrize("spelling", ["\\u005flsn", "_\\u006Csn", "\\u005Flsn", "_l\\u0073\\u006e"])
    @pytest.mark.parametrize("is_own_client", [False, True])
    def test_the_name_may_be_written_with_escapes(self, own, monkeypatch, spelling, is_own_client):
        """The value of such a property was lost, although for every reader of JSON it is the same name."""
        world, written = own
        read_feed = emulator.read_feed

        def escaped(container, request):
            page = read_feed(container, request)
            return attrs.evolve(page, text=b",".join(_escaped(each, spelling) for each in items_of(page)))

        monkeypatch.setattr("multiclouddb_cosmos_emulator.documents.read_feed", escaped)
        request = ChangeFeedRequest(ADDRESS, Beginning(), max_page_size=3, provider_options=LATEST)
        native = world.native if is_own_client else None
        with connect(world.config(), native_client=native) as client:
            events = list(client.iterate_changes(request, until_idle=True))
        assert states(events) == written
        assert [int(event.order_key) for event in events] == list(range(2, len(written) + 2))

    def test_an_item_without_the_service_s_is_not_taken_for_one_that_has_two(self):
        """One name for each document of a page is no proof that each has one."""
        text = b'{"Documents": [{"id": "a", "n": 1}, {"id": "b", "_lsn": "mine", "_lsn": 7}]}'
        first, second = _parsed(text)["Documents"]
        assert first == {"id": "a", "n": 1}
        assert second.own == ["mine", 7]


def _escaped(item, spelling):
    """Write the name of the item's own property `_lsn` as in `spelling`."""
    head, name, tail = item.rpartition(b',"_lsn":')
    return head.replace(b'"_lsn"', f'"{spelling}"'.encode()) + name + tail


def items_of(page):
    """Return the text of each item."""
    text = page.text.decode()
    found, decoder, at = [], json.JSONDecoder(), 0
    while at < len(text):
        _, end = decoder.raw_decode(text, at)
        found.append(text[at:end].encode())
        at = end + 1
    return found


def turned(page):
    """Move the service's `_lsn` to the front of each item."""
    found = []
    for item in items_of(page):
        lsn = re.search(rb',"_lsn":(\d+)}$', item)
        found.append(b'{"_lsn":%b,' % lsn[1] + item[1 : lsn.start()] + b"}")
    return attrs.evolve(page, text=b",".join(found))


class TestElsewhere:
    def test_all_versions(self, own):
        world, _ = own
        consumer = world.consumer()
        for number, value in enumerate(VALUES):
            world.container.upsert_item({"id": f"n{number}", "pk": "p", "_lsn": value})
        found = states(drained(consumer))
        assert [found[f"n{number}"]["_lsn"] for number in range(len(VALUES))] == VALUES

    @pytest.mark.parametrize("start", [Beginning(), Snapshot()], ids=["backfill", "snapshot"])
    def test_scans(self, own, start):
        world, written = own
        options = CosmosOptions(backfill=True)
        request = ChangeFeedRequest(ADDRESS, start, provider_options=options, max_page_size=3)
        events = list(world.client().iterate_changes(request, until_idle=True))
        assert states(events) == written
        lsns = {event.key["id"]: int(event.order_key) for event in events}
        assert lsns == {each: number for number, each in enumerate(sorted(written), 2)}

    @pytest.mark.parametrize("options", [None, LATEST], ids=["all_versions", "latest"])
    def test_look_ups(self, own, options):
        world, written = own
        keys = {each: MulticloudDbKey({"pk": "p", "id": each}, 1) for each in written}
        rows = world.client().lookup(ADDRESS, list(keys.values()), provider_options=options)
        assert {each: rows[key].new_item_state for each, key in keys.items()} == written

    @pytest.mark.parametrize("options", [None, LATEST], ids=["all_versions", "latest"])
    def test_the_names_of_the_feed_s_own_items(self, world, options):
        item = {
            "id": "a", "pk": "p", "metadata": {"lsn": 9, "operationType": "delete"}, "current": {"id": "b"},
            "previous": {}, "operationType": "delete", "crts": 1, "lsn": 10**12, "_metadata": {},
            "Documents": [1], "timeToLiveExpired": True, "previousImageLSN": 1, "partitionKey": {"pk": "q"},
            "_count": 0, "etag": "x", "$mongo": 1, "_TS": 5, "_Lsn": 6,
        }  # fmt: skip
        consumer = world.consumer(provider_options=options)
        world.container.upsert_item(item)
        (event,) = drained(consumer)
        assert event.new_item_state == item
        assert not event.by_expiry
        key = MulticloudDbKey({"pk": "p", "id": "a"}, 1)
        assert event.key == key
        assert world.client().lookup(ADDRESS, [key])[key].new_item_state == item

    @pytest.mark.parametrize("options", [None, LATEST], ids=["all_versions", "latest"])
    def test_what_the_service_writes_itself_is_taken_out(self, world, options):
        consumer = world.consumer(provider_options=options)
        mine = dict.fromkeys(SYSTEM, "mine")
        world.container.upsert_item({"id": "a", "pk": "p", **mine})
        (event,) = drained(consumer)
        assert event.new_item_state == {"id": "a", "pk": "p"}

    @pytest.mark.parametrize("name", sorted({LSN, *SYSTEM}))
    @pytest.mark.parametrize("is_second", [False, True])
    def test_a_partition_key_of_such_a_name_is_refused(self, make_world, name, is_second):
        """A feed of `/_ts` had a new key for each version, and look-ups said that there was no such row."""
        world = make_world(1, key=["/tenant", f"/{name}"] if is_second else f"/{name}")
        with pytest.raises(MulticloudDbError, match=name) as caught:
            world.client().read_changes(ChangeFeedRequest(ADDRESS, Now()))
        assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY

    def test_a_marker_of_this_name_is_refused(self, world):
        options = CosmosOptions(mode="latest", delete_marker="/_lsn")
        with pytest.raises(MulticloudDbError, match="delete_marker") as caught:
            world.client().read_changes(ChangeFeedRequest(ADDRESS, Now(), provider_options=options))
        assert caught.value.category == ErrorCategory.INVALID_REQUEST


def doubled(*values):
    found = Doubled(id="x")
    found[LSN], found.own = values[-1], list(values)
    return found


@pytest.mark.parametrize(
    ("documents", "after", "reached", "lsns", "own"),
    [
        ([(2, 8)], 0, 8, [8], [2]),  # as in the report
        ([(8, "x")], 0, 8, [8], ["x"]),  # the other order
        ([(9, 8)], 0, 8, [8], [9]),  # beyond the page
        ([(8, 9)], 0, 8, [8], [9]),
        ([(3, 8)], 5, 8, [8], [3]),  # before the page
        ([(8, 3)], 5, 8, [8], [3]),
        ([6, (8, 3), 9], 0, 9, [6, 8, 9], [3]),  # before the item before it
        ([(2, 6), (8, 3)], 0, 9, [6, 8], [2, 3]),  # which has the name twice itself
        ([(True, 4), (None, 5)], 0, 5, [4, 5], [True, None]),
        ([(4, 4)], 0, 5, [4], [4]),
        ([(1, 2, 8)], 0, 8, [8], [2]),  # the document has the name twice: its last value is its own
        ([("a", "b")], 0, 5, ["b"], ["a"]),  # damaged
    ],
)
def test_which_one_is_the_service_s(documents, after, reached, lsns, own):
    page = [{"id": "x", LSN: each} if type(each) is int else doubled(*each) for each in documents]
    found = told_apart(page, after, reached)
    assert [each[LSN] for each in found] == lsns
    assert [each.own for each in found if type(each) is Doubled] == own
