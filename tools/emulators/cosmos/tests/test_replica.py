"""Tests answers of a replica that lags, and an unplanned failover that loses transactions."""

import pytest

from multiclouddb_cosmos_emulator import Lag

FEED = "ReadChangeFeed"


def feed(container):
    """Return the numbers of one page, and the partition's LSN according to the answer."""
    seen = []
    pages = container.query_items_change_feed(
        start_time="Beginning", response_hook=lambda headers, _: seen.append(headers["lsn"])
    ).by_page()
    return [item["n"] for item in next(pages, None) or []], int(seen[-1])


@pytest.fixture
def items(shop):
    """Write three items, then the first one again."""
    container = shop.create()
    for number in range(3):
        container.create_item({"id": str(number), "pk": "a", "n": number})
    container.upsert_item({"id": "0", "pk": "a", "n": 3})
    return container


@pytest.fixture
def eventual(shop, items):
    """Return the container through a client that sends no session tokens."""
    with shop.connect(consistency_level="Eventual") as client:
        yield client.get_database_client("shop").get_container_client("orders")


class TestLag:
    def test_the_last_transactions_are_not_there_yet(self, server, eventual):
        items = eventual
        everything, newest = feed(items)
        assert everything == [1, 2, 3]
        server.faults.add(Lag(2), FEED)
        assert feed(items) == ([0, 1], newest - 2)
        assert feed(items) == (everything, newest)

    def test_a_replica_before_the_position_has_nothing_and_names_its_own_position(
        self, server, eventual, follow
    ):
        reader = follow(eventual, start_time="Beginning")
        assert reader.page()
        server.faults.add(Lag(1), FEED)
        assert reader.page() == []
        eventual.create_item({"id": "9", "pk": "a", "n": 9})
        assert [each["n"] for each in reader.page()] == [3, 9]

    def test_a_session_asks_another_replica(self, server, items):
        server.faults.add(Lag(2), FEED)
        assert feed(items)[0] == [1, 2, 3]
        assert [(each.status, each.substatus) for each in server.journal.entries(FEED)] == [
            (404, 1002),
            (200, 0),
        ]


class TestLoss:
    def test_the_items_are_as_they_were(self, server, eventual):
        items = eventual
        before = {each["id"]: each["n"] for each in items.read_all_items()}
        newest = server.partitions("shop", "orders")[0]["lsn"]
        items.delete_item("1", "a")
        items.upsert_item({"id": "2", "pk": "a", "n": 12})
        items.create_item({"id": "7", "pk": "a", "n": 7})
        server.lose("shop", "orders", "0", 3)
        assert {each["id"]: each["n"] for each in items.read_all_items()} == before
        assert server.partitions("shop", "orders")[0]["lsn"] == newest
        assert sorted(feed(items)[0]) == sorted(before.values())

    def test_the_numbers_are_given_again(self, server, eventual):
        _, newest = feed(eventual)
        server.lose("shop", "orders", "0", 2)
        eventual.create_item({"id": "8", "pk": "a", "n": 8})
        assert feed(eventual) == ([0, 1, 8], newest - 1)

    def test_more_than_there_is_is_refused(self, server, items):
        with pytest.raises(ValueError, match="cannot go back by 9"):
            server.lose("shop", "orders", "0", 9)
