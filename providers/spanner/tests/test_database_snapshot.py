"""Tests snapshots of a database: its tables change while they are scanned, or their old rows are lost."""

from contextlib import contextmanager

import attrs
import pytest

from multiclouddb_api import (
    BackfillDone,
    ChangeFeedRequest,
    ChangeType,
    ClientConfig,
    EntireDatabase,
    ErrorCategory,
    FeedEnded,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    OperationOptions,
    ResourceAddress,
    Snapshot,
    SnapshotOrder,
)
from multiclouddb_conformance.sink import Sink
from multiclouddb_spanner.provider import PLUGIN
from multiclouddb_spi import Deadline, FeedSpec, InvalidCursor

from .feeds import HOUR
from .servers.emulator import STILL
from .test_database import ALL, ITEMS, ORDERS, OTHERS, POSTGRES, SOME, database, places, put

ORDERED = Snapshot(SnapshotOrder.ORDERED)
NAMES = ("a", "b", "n")


@pytest.fixture
def hasty(monkeypatch):
    """Let a client check the tables at each read, as it does after half a second."""
    monkeypatch.setattr("multiclouddb_spanner.snapshots._KEPT_SECONDS", -1.0)
    monkeypatch.setattr("multiclouddb_spanner.snapshots._LATELY_SECONDS", -1.0)


def walk(shop, start, size, between, *, fresh=False):
    """Read until the feed is idle, and call `between` after each page; return the events."""
    events = []
    for number in range(2000):
        page = shop.page(start, size)
        start, events = page.continuation_token, [*events, *page.events]
        if page.idle:
            return events
        if fresh:
            shop.restart()
        between(number)
    pytest.fail("never idle")


def state(events):
    """Return what a target of each table has after these events."""
    sinks = {}
    for event in events:
        sinks.setdefault(event.address.collection, Sink()).apply([event])
    return {
        table: {tuple(key.components.values()): row["n"] for key, row in sink.rows().items()}
        for table, sink in sinks.items()
    }


@contextmanager
def three_tables():
    """Return a database of three tables, each with the keys k0 and k1."""
    with database(ITEMS, ORDERS, OTHERS, ALL) as shop:
        for number in range(2):
            shop.both(number)
            shop.write("others", (f"k{number}", number))
        yield shop


def place(event):
    return event.address.collection, event.key.canonical()


def rows(events):
    return [event for event in events if event.backfilled]


class TestRows:
    @pytest.mark.parametrize("postgres", [False, True])
    @pytest.mark.parametrize("size", [0, 1])
    def test_each_is_the_row_of_a_snapshot_of_its_table(self, postgres, size):
        with database(*(POSTGRES if postgres else ()), postgres=postgres) as shop:
            for number in range(4):
                shop.both(number)
            found = rows(shop.drain(ORDERED, size, include_native=True))
            own = {"event_id": "", "partition_id": "", "order_key": "", "timestamp": found[0].timestamp}
            alone = [*shop.of_table("items", ORDERED, include_native=True)]
            alone += shop.of_table("orders", ORDERED, include_native=True)
            same = {event.event_id: attrs.evolve(event, **own) for event in found}
            assert [same[event.event_id] for event in sorted(found, key=place)] == [
                attrs.evolve(each, **own) for each in alone
            ]
            assert len({event.event_id for event in found}) == len(found) == 8

    def test_all_tables_are_read_as_they_were_at_one_moment(self):
        with database() as shop:
            for number in range(3):
                shop.both(number)
            token = shop.page(ORDERED).continuation_token
            for number in range(3):
                shop.write("orders", (f"k{number}", number, 100), names=NAMES)
            events = shop.drain(token, 1)
            assert sorted(event.new_item_state["n"] for event in rows(events)) == [0, 0, 1, 1, 2, 2]
            assert state(events)["orders"] == {(n, f"k{n}"): 100 for n in range(3)}

    def test_a_stream_of_some_tables_has_their_rows(self):
        part = SOME.replace("items, orders", "items(), orders")
        with database(ITEMS, ORDERS, OTHERS, part, stream="some") as shop:
            shop.both(1)
            shop.write("others", ("x", 1))
            found = {event.address.collection: event.new_item_state for event in shop.drain(Snapshot())}
            assert found == {"items": None, "orders": {"b": 1, "a": "k1", "n": 1}}

    def test_documents_are_left_out_on_request(self):
        with database() as shop:
            shop.both(1)
            found = shop.drain(Snapshot(), new_item_state_mode=NewItemStateMode.OMIT)
            assert [(event.type, event.new_item_state) for event in found] == [(ChangeType.CREATE, None)] * 2

    def test_a_table_is_read_in_as_many_segments_as_are_wanted(self):
        with database() as shop:
            for number in range(9):
                shop.both(number)
            found = rows(shop.drain(Snapshot(segments=3)))
            segments = [each.partition_id.partition("snapshot:")[2] for each in found]
            assert len(found) == 18
            assert len(set(segments)) == 6

    def test_names_may_be_reserved_words_in_upper_and_lower_case(self):
        names = ("Z", "a", "select", "t_1", "t1", "ta")
        tables = [ITEMS.replace("TABLE items", f"TABLE `{name}`") for name in names]
        with database(*tables, ALL) as shop:
            for name in names:
                shop.write(name, ("k", 1))
            found = places(shop.drain(ORDERED, 1, fresh=True))
            assert sorted(name for name, _ in found) == sorted(names)

    def test_a_database_without_tables_is_over_at_once(self):
        with database(ALL) as shop:
            pages = list(shop.pages(Snapshot()))
            notices = [notice for page in pages for notice in page.notices]
            assert isinstance(notices[-1], BackfillDone)
            shop.run(ITEMS)
            shop.write("items", ("x", 1))
            assert places(shop.drain(pages[-1].continuation_token)) == [("items", {"id": "x"})]

    def test_the_rows_alone_of_a_database_without_tables(self):
        with database(ALL) as shop:
            token = shop.page(Snapshot(changes=False)).continuation_token
            assert any(isinstance(notice, FeedEnded) for notice in shop.page(token).notices)


@pytest.mark.usefixtures("hasty")
class TestAltered:
    """Tables are created and dropped while the database is scanned."""

    @pytest.mark.parametrize("fresh", [False, True])
    @pytest.mark.parametrize("after", range(7))
    def test_a_table_that_is_dropped_after_any_page(self, after, fresh):
        with three_tables() as shop:

            def drop(number):
                if number == after:
                    shop.run("DROP TABLE orders")

            events = walk(shop, ORDERED, 1, drop, fresh=fresh)
            found = state(events)
            assert found["items"] == found["others"] == {("k0",): 0, ("k1",): 1}
            assert len({event.event_id for event in events}) == len(events)

    @pytest.mark.parametrize("fresh", [False, True])
    @pytest.mark.parametrize("after", range(7))
    @pytest.mark.parametrize("key", ["(b, a)", "(n, a)"])
    def test_a_table_that_is_created_again_after_any_page(self, after, fresh, key):
        with three_tables() as shop:

            def again(number):
                if number == after:
                    shop.run("DROP TABLE orders", ORDERS.replace("(b, a)", key))
                    shop.write("orders", ("new", 7, 70), names=NAMES)

            found = state(walk(shop, ORDERED, 1, again, fresh=fresh))
            assert found["items"] == found["others"] == {("k0",): 0, ("k1",): 1}
            new = (7, "new") if key == "(b, a)" else (70, "new")
            assert found["orders"][new] == 70

    @pytest.mark.parametrize("fresh", [False, True])
    def test_tables_that_are_created_after_each_page(self, fresh):
        with database(ITEMS, ORDERS, ALL) as shop:
            for number in range(2):
                shop.both(number)
            made = {}

            def create(number):
                if number < 6:
                    name = f"{'az'[number % 2]}{number}"
                    shop.run(ITEMS.replace("items", name))
                    shop.write(name, ("x", number))
                    made[name] = {("x",): number}

            found = state(walk(shop, Snapshot(), 1, create, fresh=fresh))
            assert {name: found[name] for name in made} == made
            assert len(found) == 8


@pytest.mark.usefixtures("hasty")
class TestLost:
    """The scan takes longer than the database keeps old versions of rows, which is an hour."""

    @pytest.mark.parametrize("fresh", [False, True])
    @pytest.mark.parametrize("after", range(7))
    def test_the_rows_of_a_later_time_are_read(self, after, fresh):
        with three_tables() as shop:

            def pass_time(number):
                if number == after:
                    shop.server.advance(2 * HOUR)
                    shop.write("items", ("k1", 100))
                    shop.write("orders", ("k0", 0, 100), names=NAMES)
                    shop.run(ITEMS.replace("items", "more"), ITEMS.replace("items", "zzz"))
                    shop.write("more", ("x", 1))
                    shop.write("zzz", ("y", 2))

            assert state(walk(shop, Snapshot(), 1, pass_time, fresh=fresh)) == {
                "items": {("k0",): 0, ("k1",): 100},
                "orders": {(0, "k0"): 100, (1, "k1"): 1},
                "others": {("k0",): 0, ("k1",): 1},
                "more": {("x",): 1},
                "zzz": {("y",): 2},
            }

    @pytest.mark.parametrize(
        "again",
        [(), (ORDERS,), *((ORDERS.replace("(b, a)", key),) for key in ("(n, a)", "(a)", "(a, b)"))],
        ids=["dropped", "again", "other key", "shorter key", "other types"],
    )
    @pytest.mark.parametrize("fresh", [False, True])
    @pytest.mark.parametrize("after", range(7))
    def test_a_table_that_is_gone_by_then_has_no_rows(self, after, fresh, again):
        with three_tables() as shop:

            def pass_time(number):
                if number == after:
                    shop.server.advance(2 * HOUR)
                    shop.run("DROP TABLE orders", *again)
                    if again:
                        shop.write("orders", ("z", 9, 90), names=NAMES)

            found = state(walk(shop, Snapshot(), 1, pass_time, fresh=fresh))
            assert found["items"] == found["others"] == {("k0",): 0, ("k1",): 1}
            assert (90 in found.get("orders", {}).values()) == bool(again)

    def test_time_passes_again_and_again(self):
        with three_tables() as shop:
            found = state(walk(shop, Snapshot(), 1, lambda _: shop.server.advance(1.5 * HOUR)))
            assert [len(each) for each in found.values()] == [2, 2, 2]


class TestRefused:
    def test_a_role_that_may_not_see_all_tables(self):
        with database() as shop:
            shop.scripted.url += "&database_role=reader"
            shop.restart()
            shop.token()
            message = shop.refused(ErrorCategory.UNSUPPORTED_CAPABILITY, Snapshot())
            assert "database_role" in message

    @pytest.mark.parametrize(
        "rest",
        [
            None, [], [0], [0, "", 7], [-1, "", None], [True, "", None], [0, None, None],
            [0, "items", [0, "", [""]]], [0, "items", [0, "", [""], 7]], [0, "items", [0, "", [], "x"]],
            [0, "items", [0, "", ["x"], "x"]], [0, "items", [0, "", [""], "a/b"]],
            [0, "", [0, "", [""], "x"]],
        ],
    )  # fmt: skip
    def test_a_rest_of_another_shape(self, rest):
        with database() as shop:
            provider = PLUGIN.connect(ClientConfig("spanner", {"url": shop.scripted.url}), None)
            feed = provider.open_feed(FeedSpec(shop.whole, EntireDatabase()), Deadline.after(30))
            plan = feed.snapshot(None, Deadline.after(30))
            with pytest.raises(InvalidCursor):
                feed.segments(plan.scan, rest, 1, Deadline.after(30))
            with pytest.raises(InvalidCursor):
                feed.open_segment(plan.scan.segment("0"))
            provider.close()


class TestSize:
    def test_a_thousand_tables_need_small_tokens_and_a_few_requests_each(self):
        names = [f"table_with_a_long_name_{number:04}" for number in range(1000)]
        tables = [ITEMS.replace("items", name) for name in names]
        with database(*tables, ALL) as shop:
            for name in names[::10]:
                shop.write(name, ("x", 1))
            pages = list(shop.pages(ORDERED, 7))
            assert len(rows([event for page in pages for event in page.events])) == 100
            assert max(len(page.continuation_token) for page in pages) < 1000
            calls = shop.server.journal.calls
            for once in ("index_columns", "information_schema.tables", "information_schema.columns"):
                assert len([call for call in calls if once in call.sql]) == 1
            assert len([call for call in calls if call.method == "StreamingRead"]) == 2000


@pytest.mark.emulator(*STILL)
class TestGoogle:
    """What Google's own server decides."""

    @pytest.fixture
    def shop(self, still):
        made = still.database(ITEMS, ORDERS, OTHERS, ALL)
        yield made
        made.drop()

    def test_a_table_without_a_key_column_is_refused(self, shop, ours):
        shop.update_ddl(["CREATE TABLE single (v INT64) PRIMARY KEY ()"]).result(60)
        here = ResourceAddress(database=shop.database_id)
        with pytest.raises(MulticloudDbError) as caught:
            ours.read_changes(ChangeFeedRequest(here, Snapshot(), scope=EntireDatabase()))
        assert caught.value.category is ErrorCategory.UNSUPPORTED_CAPABILITY
        assert "'single' has no key column" in caught.value.message

    @pytest.mark.parametrize("alter", [(), ("DROP TABLE orders",), ("DROP TABLE orders", ORDERS)], ids=len)
    @pytest.mark.parametrize("after", [0, 2, 3])
    def test_a_table_is_dropped_during_the_scan(self, shop, ours, alter, after):
        for number in range(2):
            put(shop, "items", [f"k{number}", number])
            put(shop, "orders", [f"k{number}", number, number], names=NAMES)
            put(shop, "others", [f"k{number}", number])
        here = ResourceAddress(database=shop.database_id)
        request = ChangeFeedRequest(here, ORDERED, scope=EntireDatabase(), max_page_size=1)
        events = []
        for number in range(100):
            page = ours.read_changes(request, OperationOptions(30))
            request = attrs.evolve(request, start_position=FromContinuationToken(page.continuation_token))
            events += page.events
            if page.idle:
                break
            if number == after:
                for statement in alter:
                    shop.update_ddl([statement]).result(60)
                put(shop, "others", ["new", 5])
        found = state(events)
        assert found["items"] == {("k0",): 0, ("k1",): 1}
        assert found["others"] == {("k0",): 0, ("k1",): 1, ("new",): 5}
        assert alter or found["orders"] == {(0, "k0"): 0, (1, "k1"): 1}
