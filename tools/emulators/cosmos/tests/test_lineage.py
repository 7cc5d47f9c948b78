"""Tests splits and merges, caused by commands or by changes of throughput, and their effect on reads."""

import pytest
from azure.cosmos import PartitionKey

ALL = "AllVersionsAndDeletes"


def fill(container, count, first=0):
    for number in range(first, first + count):
        container.create_item({"id": str(number), "pk": f"k{number}", "n": number})


def numbers(items):
    return sorted(each["n"] for each in items)


class TestSplits:
    def test_the_children_share_items_and_go_on_counting(self, shop, container):
        fill(container, 20)
        before = shop.partitions()[0]["lsn"]
        first, second = shop.split()
        low, high = shop.partitions()
        assert (low["id"], high["id"]) == (first, second) == ("1", "2")
        assert low["items"] + high["items"] == 20
        assert low["lsn"] == high["lsn"] == before
        assert low["parents"] == high["parents"] == ["0"]
        assert low["high"] == high["low"]

    def test_grandchildren_name_all_their_ancestors(self, shop, container):
        shop.split()
        shop.split("2")
        assert [each["parents"] for each in shop.partitions()] == [["0"], ["0", "2"], ["0", "2"]]

    def test_point_operations_notice_nothing(self, shop, container):
        fill(container, 10)
        shop.split()
        assert container.read_item("3", "k3")["n"] == 3
        container.upsert_item({"id": "3", "pk": "k3", "n": 33})
        container.delete_item("4", "k4")
        assert len(list(container.read_all_items())) == 9

    def test_a_reader_goes_on_in_the_children(self, shop, container, follow, server):
        fill(container, 10)
        reader = follow(container, start_time="Beginning", max_item_count=4)
        found = reader.page()
        shop.split()
        found += reader.all()
        fill(container, 10, first=10)
        found += reader.all()
        assert numbers(found) == list(range(20))
        assert [
            (each.status, each.substatus)
            for each in server.journal.entries("ReadChangeFeed")
            if each.status >= 400
        ] == [(410, 1002)]

    def test_all_versions_go_on_in_the_children(self, shop, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        fill(container, 10)
        container.delete_item("3", "k3")
        shop.split()
        container.delete_item("4", "k4")
        kinds = [each["metadata"]["operationType"] for each in reader.all()]
        assert sorted(kinds) == [*["create"] * 10, "delete", "delete"]

    def test_each_child_s_feed_has_its_own_items(self, shop, container):
        fill(container, 20)
        shop.split()
        for partition in container.read_feed_ranges(force_refresh=True):
            feed = container.query_items_change_feed(feed_range=partition, start_time="Beginning")
            items = container.query_items("SELECT VALUE c.n FROM c", feed_range=partition)
            assert numbers(feed) == sorted(items) != []

    def test_two_splits_at_once(self, shop, container, follow):
        fill(container, 12)
        reader = follow(container, start_time="Beginning", max_item_count=3)
        found = reader.page()
        shop.split()
        shop.split("1")
        shop.split("2")
        fill(container, 12, first=12)
        found += reader.all()
        assert numbers(found) == list(range(24))

    def test_a_boundary_can_be_named(self, shop, container):
        fill(container, 10)
        boundary = shop.server.effective_key("k5")
        shop.split(boundary=boundary)
        assert shop.partitions()[1]["low"] == boundary
        assert shop.server.partition_of("shop", "orders", "k5") == "2"

    @pytest.mark.parametrize("boundary", ["", "FF"])
    def test_one_outside_is_refused(self, shop, container, boundary):
        with pytest.raises(ValueError, match="does not lie between"):
            shop.split(boundary=boundary)

    def test_while_it_completes_requests_are_tried_again(self, shop, container, server):
        fill(container, 10)
        list(container.query_items_change_feed(start_time="Beginning"))
        shop.split(completing=2)
        assert numbers(container.query_items_change_feed(start_time="Beginning")) == list(range(10))
        answers = [(each.status, each.substatus) for each in server.journal.entries("ReadChangeFeed")]
        assert answers.count((410, 1007)) == 4

    def test_queries_find_everything_after_one(self, shop, container):
        fill(container, 20)
        everything = {"enable_cross_partition_query": True}
        list(container.query_items("SELECT VALUE COUNT(1) FROM c", **everything))
        shop.split()
        assert list(container.query_items("SELECT VALUE COUNT(1) FROM c", **everything)) == [20]
        query = "SELECT VALUE c.n FROM c ORDER BY c.n"
        assert list(container.query_items(query, **everything)) == list(range(20))
        assert len(container.read_items([(str(n), f"k{n}") for n in range(20)])) == 20

    def test_a_container_of_version_1_splits(self, shop):
        container = shop.create(key=PartitionKey("/pk", version=1))
        fill(container, 20)
        shop.split()
        assert all(each["items"] for each in shop.partitions())
        assert numbers(container.query_items_change_feed(start_time="Beginning")) == list(range(20))


class TestThroughput:
    def test_more_throughput_splits(self, shop, container, follow):
        fill(container, 20)
        reader = follow(container, start_time="Beginning", max_item_count=5)
        found = reader.page()
        container.replace_throughput(30_000)
        assert len(shop.partitions()) == 3
        fill(container, 20, first=20)
        found += reader.all()
        assert numbers(found) == list(range(40))

    def test_less_throughput_merges_nothing(self, shop, container):
        container.replace_throughput(20_000)
        container.replace_throughput(400)
        assert len(shop.partitions()) == 2


class TestMerges:
    def test_the_child_has_both_and_counts_on_from_the_higher(self, shop):
        container = shop.create(partitions=2)
        fill(container, 10)
        for _ in range(10):
            container.upsert_item({"id": "0", "pk": "k0", "n": 0})
        parents = shop.partitions()
        assert len({each["lsn"] for each in parents}) == 2
        child = shop.merge("0", "1")
        (merged,) = shop.partitions()
        assert merged["id"] == child == "2"
        assert merged["items"] == 10
        assert merged["lsn"] == max(each["lsn"] for each in parents)
        assert sorted(merged["parents"]) == ["0", "1"]
        assert (merged["low"], merged["high"]) == ("", "FF")

    def test_a_reader_goes_on_in_the_child(self, shop, follow):
        container = shop.create(partitions=2)
        fill(container, 20)
        readers = [
            follow(container, start_time="Beginning", max_item_count=3, feed_range=each)
            for each in container.read_feed_ranges()
        ]
        found = [item for reader in readers for item in reader.page()]
        shop.merge("1", "0")
        fill(container, 10, first=20)
        found += [item for reader in readers for item in reader.all()]
        assert numbers(found) == list(range(30))

    def test_point_operations_and_queries_notice_nothing(self, shop):
        container = shop.create(partitions=2)
        fill(container, 10)
        shop.merge("0", "1")
        assert container.read_item("3", "k3")["n"] == 3
        found = container.query_items("SELECT VALUE c.n FROM c", enable_cross_partition_query=True)
        assert sorted(found) == list(range(10))

    def test_it_is_read_from_the_beginning_but_not_from_a_time(self, shop):
        """Azure/azure-sdk-for-java issue 48752, Azure/azure-sdk-for-go issue 26775."""
        container = shop.create(partitions=2)
        fill(container, 3)
        shop.merge("0", "1")
        found = container.query_items_change_feed(start_time="Beginning")
        assert numbers(found) == [0, 1, 2]
        pages = container.query_items_change_feed(start_time=shop.server.clock.now())
        assert shop.fails(list, pages) == (400, 0)

    def test_all_versions_cannot_be_read_from_it(self, shop):
        container = shop.create(partitions=2)
        shop.merge("0", "1")
        pages = container.query_items_change_feed(mode=ALL, start_time="Now")
        assert shop.fails(list, pages) == (500, 0)

    def test_only_neighbours_merge(self, shop):
        shop.create(partitions=3)
        with pytest.raises(ValueError, match="not adjacent"):
            shop.merge("0", "2")
        with pytest.raises(ValueError, match="there is no partition '9'"):
            shop.merge("0", "9")

    def test_it_can_split_again(self, shop, follow):
        container = shop.create(partitions=2)
        fill(container, 10)
        readers = [
            follow(container, start_time="Beginning", feed_range=each)
            for each in container.read_feed_ranges()
        ]
        found = [item for reader in readers for item in reader.page()]
        child = shop.merge("0", "1")
        shop.split(child)
        fill(container, 10, first=10)
        found += [item for reader in readers for item in reader.all()]
        assert numbers(found) == list(range(20))
