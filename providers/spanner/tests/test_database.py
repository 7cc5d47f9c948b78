"""Tests a database that is read as a whole: which stream, and what happens to its tables meanwhile."""

from contextlib import contextmanager

import attrs
import pytest

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    NewItemStateMode,
    OldItemStateMode,
    ResourceAddress,
)
from multiclouddb_spanner_emulator import Write

from .feeds import MINUTE, Feed, once
from .servers.emulator import STILL

CAPTURE = "(value_capture_type = 'NEW_ROW_AND_OLD_VALUES')"
ALL = f"CREATE CHANGE STREAM everything FOR ALL OPTIONS {CAPTURE}"
SOME = f"CREATE CHANGE STREAM some FOR items, orders OPTIONS {CAPTURE}"
ITEMS = "CREATE TABLE items (id STRING(9) NOT NULL, n INT64) PRIMARY KEY (id)"
ORDERS = "CREATE TABLE orders (a STRING(9) NOT NULL, b INT64 NOT NULL, n INT64) PRIMARY KEY (b, a)"
OTHERS = "CREATE TABLE others (id STRING(9) NOT NULL, n INT64) PRIMARY KEY (id)"
POSTGRES = [
    "CREATE TABLE items (id varchar NOT NULL, n bigint, PRIMARY KEY (id))",
    "CREATE TABLE orders (a varchar NOT NULL, b bigint NOT NULL, n bigint, PRIMARY KEY (b, a))",
    f"CREATE CHANGE STREAM everything FOR ALL WITH {CAPTURE}",
]


class DatabaseFeed(Feed):
    """A database on a scripted server, which is read as a whole."""

    def __init__(self, *statements, stream=None, **habits):
        super().__init__(*statements, **{"initial_partitions": 1, **habits})
        self.whole = ResourceAddress(database=self.scripted.name)
        if stream is not None:
            self.scripted.url += f"&change_stream={stream}"
            self.restart()

    def page(self, start, size=0, **settings):
        here, self.address = self.address, self.whole
        try:
            return super().page(start, size, scope=EntireDatabase(), **settings)
        finally:
            self.address = here

    def of_table(self, table, start, **settings):
        """Return the events of one table, as a reader of this table has them."""
        request = ChangeFeedRequest(ResourceAddress(self.scripted.name, table), start, **settings)
        return list(self.client.iterate_changes(request, until_idle=True))

    def write(self, table, *rows, names=("id", "n")):
        return self.scripted.write(table, *rows, names=names)

    def both(self, number):
        self.write("items", (f"k{number}", number))
        self.write("orders", (f"k{number}", number, number), names=("a", "b", "n"))


@contextmanager
def database(*statements, **settings):
    made = DatabaseFeed(*(statements or (ITEMS, ORDERS, ALL)), **settings)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def at_once(monkeypatch):
    """Let a client check the schema at each read, instead of once a minute."""
    monkeypatch.setattr("multiclouddb_spanner.source._CHECK_SECONDS", 0.0)


def places(events):
    return [(event.address.collection, dict(event.key.components)) for event in events]


class TestEvents:
    @pytest.mark.parametrize("postgres", [False, True])
    @pytest.mark.parametrize("size", [0, 1])
    def test_each_is_the_event_of_a_reader_of_its_table(self, postgres, size):
        with database(*(POSTGRES if postgres else ()), postgres=postgres) as shop:
            for number in range(4):
                shop.both(number)
            shop.both(0)
            settings = {"old_item_state_mode": OldItemStateMode.INCLUDE_IF_AVAILABLE, "include_native": True}
            events = shop.drain(Beginning(), size, **settings)
            once(events, 10)
            alone = [*shop.of_table("items", Beginning(), **settings)]
            alone += shop.of_table("orders", Beginning(), **settings)
            same = {event.event_id: attrs.evolve(event, partition_id="") for event in alone}
            assert {each.event_id: attrs.evolve(each, partition_id="") for each in events} == same
            order = next(event for event in events if event.address.collection == "orders")
            assert list(order.key.components) == ["b", "a"]

    def test_a_transaction_that_spans_tables_may_be_cut_anywhere(self):
        with database() as shop:
            token = shop.token()
            items = Write("insert", "items", ("id", "n"), [[f"k{n}", str(n)] for n in range(3)])
            orders = Write("insert", "orders", ("a", "b"), [[f"k{n}", str(n)] for n in range(3)])
            shop.server.commit(shop.scripted.database, items, orders)
            whole = [event.event_id for event in shop.drain(token)]
            assert [event.event_id for event in shop.drain(token, 1, fresh=True)] == whole
            assert len(set(whole)) == 6

    def test_tables_with_the_same_columns_keep_their_keys(self):
        """Their records look alike, except for the name of the table."""
        other = ORDERS.replace("TABLE orders", "TABLE returns").replace("(b, a)", "(a, b)")
        with database(ORDERS, other, ALL) as shop:
            for table in ("orders", "returns"):
                shop.write(table, ("x", 1), names=("a", "b"))
            keys = {event.address.collection: list(event.key) for event in shop.drain(Beginning())}
            assert keys == {"orders": ["b", "a"], "returns": ["a", "b"]}


class TestStream:
    """One stream is read. One that does not watch every table has to be named."""

    def test_one_for_all_is_found_beside_those_of_tables(self):
        with database(ITEMS, ORDERS, SOME, ALL) as shop:
            shop.both(1)
            once(shop.drain(Beginning()), 2)

    @pytest.mark.parametrize("streams", [(), (SOME,)])
    def test_no_stream_for_all_is_refused_with_the_statement(self, streams):
        with database(ITEMS, ORDERS, *streams) as shop:
            message = shop.refused(ErrorCategory.NOT_FOUND, Beginning())
            assert "FOR ALL" in message
            assert "change_stream" in message

    def test_several_are_named_one_is_read(self):
        with database(ITEMS, ORDERS, ALL, ALL.replace("everything", "more")) as shop:
            assert "'everything', 'more'" in shop.refused(ErrorCategory.INVALID_REQUEST, Beginning())
        with database(ITEMS, ORDERS, ALL, ALL.replace("everything", "more"), stream="more") as shop:
            shop.both(1)
            once(shop.drain(Beginning()), 2)

    def test_a_named_one_is_read_for_the_tables_that_it_watches(self):
        with database(ITEMS, ORDERS, OTHERS, SOME, stream="some") as shop:
            shop.both(1)
            shop.write("others", ("x", 1))
            assert {table for table, _ in places(shop.drain(Beginning()))} == {"items", "orders"}

    def test_some_columns_give_no_document_in_that_table_alone(self):
        part = f"CREATE CHANGE STREAM some FOR items(), orders OPTIONS {CAPTURE}"
        with database(ITEMS, ORDERS, part, stream="some") as shop:
            shop.both(1)
            found = {event.address.collection: event.new_item_state for event in shop.drain(Beginning())}
            assert found["items"] is None
            assert found["orders"] == {"b": 1, "a": "k1", "n": 1}
            whole = {"new_item_state_mode": NewItemStateMode.REQUIRE}
            assert "FOR ALL" in shop.refused(ErrorCategory.UNSUPPORTED_CAPABILITY, Beginning(), **whole)


@pytest.mark.usefixtures("at_once")
class TestAltered:
    """The schema changes while the database is read."""

    @pytest.mark.parametrize("fresh", [False, True])
    def test_a_new_table_has_its_events(self, fresh):
        with database() as shop:
            token = shop.page(shop.token()).continuation_token
            shop.run(OTHERS)
            shop.write("others", ("x", 1))
            if fresh:
                shop.restart()
            assert places(shop.drain(token)) == [("others", {"id": "x"})]

    @pytest.mark.parametrize("fresh", [False, True])
    def test_a_dropped_table_has_its_events_and_the_others_go_on(self, fresh):
        with database() as shop:
            token = shop.page(shop.token()).continuation_token
            shop.both(1)
            shop.run("DROP TABLE items")
            shop.write("orders", ("a", 2, 2), names=("a", "b", "n"))
            if fresh:
                shop.restart()
            found = places(shop.drain(token))
            kept = [("items", {"id": "k1"}), ("orders", {"b": 1, "a": "k1"}), ("orders", {"b": 2, "a": "a"})]
            assert [each for each in found if each in kept] == kept

    def test_one_that_is_made_again_with_another_key_has_the_events_of_both(self):
        with database() as shop:
            token = shop.token()
            shop.write("items", ("x", 1))
            shop.run("DROP TABLE items", ITEMS.replace("(id)", "(n)").replace("n INT64", "n INT64 NOT NULL"))
            shop.write("items", ("x", 2))
            found = places(shop.drain(token))
            assert found[0] == ("items", {"id": "x"})
            assert found[-1] == ("items", {"n": 2})

    def test_a_new_column_is_in_the_events_from_then_on(self):
        with database() as shop:
            token = shop.token()
            shop.write("items", ("x", 1))
            shop.run("ALTER TABLE items ADD COLUMN m INT64")
            shop.write("items", ("x", 2, 3), names=("id", "n", "m"))
            states = [event.new_item_state for event in shop.drain(token)]
            assert states == [{"id": "x", "n": 1}, {"id": "x", "n": 2, "m": 3}]

    @pytest.mark.parametrize(
        ("before", "after", "names"),
        [
            (ALL, "ALTER CHANGE STREAM everything SET FOR items, orders", "every table"),
            (SOME, "ALTER CHANGE STREAM some SET FOR orders", "table 'items'"),
        ],
    )
    def test_a_stream_that_watches_less_is_told(self, before, after, names):
        with database(ITEMS, ORDERS, before, stream=before.split()[3]) as shop:
            token = shop.token()
            shop.both(1)
            token = shop.page(token).continuation_token
            shop.run(after)
            message = shop.refused(ErrorCategory.NOT_FOUND, token)
            assert f"no longer watches {names}" in message

    def test_a_stream_that_watches_more_goes_on(self):
        with database(ITEMS, ORDERS, OTHERS, SOME, stream="some") as shop:
            token = shop.token()
            shop.both(1)
            token = shop.page(token).continuation_token
            shop.run("ALTER CHANGE STREAM some SET FOR items, orders, others")
            shop.write("others", ("x", 1))
            (event,) = shop.drain(token)
            assert event.address.collection == "others"
            assert event.new_item_state == {"id": "x", "n": 1}

    def test_a_time_without_a_table_is_a_gap_for_one_who_was_not_there(self):
        with database(ITEMS, ORDERS, SOME, stream="some") as shop:
            token = shop.page(shop.token()).continuation_token
            shop.server.advance(5 * MINUTE)
            shop.run("ALTER CHANGE STREAM some SET FOR orders")
            shop.write("items", ("lost", 1))
            shop.server.advance(10 * MINUTE)
            shop.run("ALTER CHANGE STREAM some SET FOR items, orders")
            shop.server.advance(5 * MINUTE)
            shop.restart()
            message = shop.refused(ErrorCategory.CHECKPOINT_EXPIRED, token)
            assert "did not watch all its tables" in message

    def test_columns_that_changed_are_logged_with_their_table(self, caplog):
        with database() as shop:
            token = shop.page(shop.token()).continuation_token
            shop.run("ALTER TABLE items ADD COLUMN m INT64", OTHERS)
            shop.page(token)
            shop.page(token)
            (line,) = [each.getMessage() for each in caplog.records if "have changed" in each.getMessage()]
            assert line.startswith("the columns of table 'items' have changed: m was added")


class TestKeyOrder:
    """A record does not name the order of the key columns, so it comes from the schema of that time."""

    def test_a_change_of_a_table_that_is_gone_is_named_and_can_be_skipped(self):
        """The scripted server has forgotten its schema, as the service does after an hour."""
        with database() as shop:
            token = shop.token()
            shop.both(1)
            shop.run("DROP TABLE orders")
            shop.write("items", ("x", 2))
            first = shop.page(token)
            assert places(first.events) == [("items", {"id": "k1"})]
            with pytest.raises(MulticloudDbError) as caught:
                shop.page(first.continuation_token)
            assert caught.value.category == ErrorCategory.PROVIDER_ERROR
            assert "the order of its key columns" in caught.value.message
            token = caught.value.detail.skip_token
            found = [event for event in shop.drain(token) if event.new_item_state]
            assert places(found) == [("items", {"id": "x"})]

    def test_it_is_asked_once_a_minute_for_all_tables(self):
        with database() as shop:
            other = ORDERS.replace("TABLE orders", "TABLE returns")
            shop.run(other)
            for number in range(20):
                for table in ("orders", "returns"):
                    shop.write(table, ("x", number), names=("a", "b"))
            shop.page(Beginning())
            shop.server.journal.clear()
            shop.restart()
            once(shop.drain(Beginning()), 40)
            assert len([call for call in shop.server.journal.calls if "index_columns" in call.sql]) == 1


@pytest.mark.emulator(*STILL)
class TestGoogle:
    """What Google's own server decides."""

    @pytest.fixture
    def shop(self, still):
        made = still.database(ITEMS, ORDERS, ALL)
        yield made
        made.drop()

    def test_changes_of_a_table_that_is_gone_have_the_key_that_it_had(self, shop, ours):
        here = ResourceAddress(database=shop.database_id)
        put(shop, "orders", ["a", 1, 1], names=("a", "b", "n"))
        put(shop, "items", ["x", 1])
        again = ORDERS.replace("(b, a)", "(n, a)")
        shop.update_ddl(["DROP TABLE orders"]).result(60)
        shop.update_ddl([again]).result(60)
        put(shop, "orders", ["b", 2, 2], names=("a", "b", "n"))
        shop.update_ddl([ITEMS.replace("TABLE items", "TABLE goods")]).result(60)
        put(shop, "goods", ["y", 2])
        request = ChangeFeedRequest(here, Beginning(), scope=EntireDatabase())
        events = [each for each in ours.iterate_changes(request, until_idle=True) if each.new_item_state]
        assert [(event.address.collection, list(event.key.components.items())) for event in events] == [
            ("orders", [("b", 1), ("a", "a")]),
            ("items", [("id", "x")]),
            ("orders", [("n", 2), ("a", "b")]),
            ("goods", [("id", "y")]),
        ]

    def test_tables_that_look_alike_and_are_made_one_after_the_other(self, shop, ours):
        """The schema that answered for one of them does not know the next one."""
        tables = ["orders", "more", "most"]
        for table in tables:
            if table != "orders":
                shop.update_ddl([ORDERS.replace("TABLE orders", f"TABLE {table}")]).result(60)
            put(shop, table, ["a", 1, 1], names=("a", "b", "n"))
        here = ResourceAddress(database=shop.database_id)
        request = ChangeFeedRequest(here, Beginning(), scope=EntireDatabase())
        events = ours.iterate_changes(request, until_idle=True)
        assert places(events) == [(table, {"b": 1, "a": "a"}) for table in tables]

    def test_a_table_without_a_key_column_is_named_and_can_be_skipped(self, shop, ours):
        shop.update_ddl(["CREATE TABLE single (v INT64) PRIMARY KEY ()"]).result(60)
        put(shop, "single", [1], names=("v",))
        put(shop, "items", ["x", 1])
        request = ChangeFeedRequest(
            ResourceAddress(database=shop.database_id), Beginning(), scope=EntireDatabase()
        )
        with pytest.raises(MulticloudDbError) as caught:
            ours.read_changes(request)
        assert "table 'single' has no key column" in caught.value.message
        rest = attrs.evolve(request, start_position=FromContinuationToken(caught.value.detail.skip_token))
        assert places(ours.iterate_changes(rest, until_idle=True)) == [("items", {"id": "x"})]


def put(database, table, row, names=("id", "n")):
    with database.batch() as batch:
        batch.insert(table, names, [row])


class TestCost:
    """One reading costs the same for one table and for twenty."""

    def test_twenty_tables_need_the_requests_of_one(self):
        def requests(tables):
            with database(*(ITEMS.replace("items", f"t{n}") for n in range(tables)), ALL) as shop:
                for number in range(400):
                    shop.write(f"t{number % tables}", (f"k{number}", number))
                shop.server.journal.clear()
                once(shop.drain(Beginning()), 400)
                return len(shop.server.journal.calls)

        assert requests(20) <= 1.1 * requests(1)
