"""Tests the change feed in both modes, from every start, through the unmodified azure-cosmos."""

from datetime import timedelta

import pytest
from azure.cosmos.exceptions import CosmosHttpResponseError

ALL = "AllVersionsAndDeletes"


def fill(container, count, first=0, pk="a"):
    for number in range(first, first + count):
        container.create_item({"id": str(number), "pk": pk, "n": number})


def numbers(items):
    return [each["n"] for each in items]


def operations(items):
    return [each["metadata"]["operationType"] for each in items]


class TestLatestVersion:
    def test_from_the_beginning_in_the_order_of_writing(self, container):
        fill(container, 5)
        found = list(container.query_items_change_feed(start_time="Beginning"))
        assert numbers(found) == [0, 1, 2, 3, 4]
        lsns = [each["_lsn"] for each in found]
        assert lsns == sorted(set(lsns))
        assert {name: value for name, value in found[2].items() if name != "_lsn"} == container.read_item(
            "2", "a"
        )

    def test_an_item_comes_once_where_it_was_written_last(self, container):
        fill(container, 3)
        container.upsert_item({"id": "0", "pk": "a", "n": 7})
        assert numbers(container.query_items_change_feed(start_time="Beginning")) == [1, 2, 7]

    def test_a_deleted_one_does_not_come(self, container):
        fill(container, 3)
        container.delete_item("1", "a")
        assert numbers(container.query_items_change_feed(start_time="Beginning")) == [0, 2]

    def test_without_a_start_it_is_now(self, container, follow):
        fill(container, 3)
        reader = follow(container)
        assert reader.page() == []
        fill(container, 2, first=3)
        assert numbers(reader.page()) == [3, 4]

    def test_from_now_on(self, container, follow):
        fill(container, 3)
        reader = follow(container, start_time="Now")
        assert reader.all() == []
        container.upsert_item({"id": "1", "pk": "a", "n": 8})
        assert numbers(reader.all()) == [8]

    def test_from_a_time_on(self, shop, container):
        fill(container, 3)
        shop.server.advance(60)
        when = shop.server.clock.now().replace(microsecond=0)
        fill(container, 2, first=3)
        assert numbers(container.query_items_change_feed(start_time=when)) == [3, 4]
        earlier = when - timedelta(hours=1)
        assert numbers(container.query_items_change_feed(start_time=earlier)) == [0, 1, 2, 3, 4]

    def test_pages_have_so_many_items_at_most(self, container):
        fill(container, 7)
        pages = container.query_items_change_feed(start_time="Beginning", max_item_count=3).by_page()
        assert [numbers(page) for page in pages] == [[0, 1, 2], [3, 4, 5], [6]]

    def test_a_page_has_a_hundred_unless_told_otherwise(self, container):
        for first in range(0, 120, 40):
            batch = [("create", ({"id": str(first + n), "pk": "a"},)) for n in range(40)]
            container.execute_item_batch(batch, partition_key="a")
        pages = container.query_items_change_feed(start_time="Beginning").by_page()
        assert [len(list(page)) for page in pages] == [120]

    def test_a_transaction_is_never_cut(self, container):
        batch = [("create", ({"id": str(number), "pk": "a", "n": number},)) for number in range(5)]
        container.execute_item_batch(batch, partition_key="a")
        fill(container, 2, first=5)
        pages = container.query_items_change_feed(start_time="Beginning", max_item_count=2).by_page()
        found = [list(page) for page in pages]
        assert [numbers(page) for page in found] == [[0, 1, 2, 3, 4], [5, 6]]
        assert len({each["_lsn"] for each in found[0]}) == 1

    def test_it_goes_on_from_a_continuation(self, container, follow):
        fill(container, 5)
        reader = follow(container, start_time="Beginning", max_item_count=2)
        assert numbers(reader.page()) == [0, 1]
        fill(container, 1, first=5)
        assert numbers(reader.all()) == [2, 3, 4, 5]

    def test_an_old_continuation_never_expires(self, shop, container, follow):
        fill(container, 3)
        reader = follow(container, start_time="Beginning", max_item_count=1)
        assert numbers(reader.page()) == [0]
        shop.server.advance(365 * 24 * 3600)
        shop.server.trim("shop", "orders")
        assert numbers(reader.all()) == [1, 2]

    def test_one_logical_partition(self, shop):
        container = shop.create(partitions=3)
        for key in "abcdef":
            fill(container, 2, pk=key)
        found = list(container.query_items_change_feed(partition_key="c", start_time="Beginning"))
        assert [each["pk"] for each in found] == ["c", "c"]

    def test_one_feed_range_each(self, shop):
        container = shop.create(partitions=3)
        for number in range(30):
            container.create_item({"id": str(number), "pk": str(number), "n": number})
        parts = [
            numbers(container.query_items_change_feed(feed_range=each, start_time="Beginning"))
            for each in container.read_feed_ranges()
        ]
        assert sorted(number for part in parts for number in part) == list(range(30))
        assert all(parts)

    def test_all_partitions_in_one(self, shop):
        container = shop.create(partitions=3)
        for number in range(30):
            container.create_item({"id": str(number), "pk": str(number), "n": number})
        found = container.query_items_change_feed(start_time="Beginning", max_item_count=4)
        assert sorted(numbers(found)) == list(range(30))

    def test_nothing_new_is_304_with_the_position(self, server, container):
        fill(container, 1)
        told = []
        pages = container.query_items_change_feed(
            start_time="Now", response_hook=lambda headers, _: told.append((headers["etag"], headers["lsn"]))
        )
        assert list(pages) == []
        assert [each.status for each in server.journal.entries("ReadChangeFeed")] == [304]
        ((etag, lsn),) = told
        assert etag == f'"{lsn}"'


class TestAllVersions:
    def test_every_version_and_every_delete(self, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        assert reader.page() == []
        made = container.create_item({"id": "1", "pk": "a", "n": 1})
        container.upsert_item({"id": "1", "pk": "a", "n": 2})
        container.patch_item("1", "a", [{"op": "incr", "path": "/n", "value": 1}])
        container.delete_item("1", "a")
        found = reader.all()
        assert operations(found) == ["create", "replace", "replace", "delete"]
        assert [each["current"].get("n") for each in found] == [1, 2, 3, None]
        assert found[0]["current"] == made

    def test_metadata_tells_position_time_and_the_version_before(self, shop, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        container.create_item({"id": "1", "pk": "a"})
        container.delete_item("1", "a")
        create, delete = (each["metadata"] for each in reader.all())
        assert create.keys() == {"operationType", "lsn", "crts"}
        assert delete["previousImageLSN"] == create["lsn"] == delete["lsn"] - 1
        assert delete["id"] == "1"
        assert delete["partitionKey"] == {"pk": "a"}
        assert abs(delete["crts"] - shop.server.clock.seconds()) < 60

    def test_a_delete_has_no_item(self, container, follow):
        container.create_item({"id": "1", "pk": "a", "secret": "x"})
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        container.delete_item("1", "a")
        (found,) = reader.all()
        assert found["current"] == {}
        assert "previous" not in found

    def test_a_transaction_shares_a_position(self, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        batch = [
            ("create", ({"id": "1", "pk": "a"},)),
            ("upsert", ({"id": "1", "pk": "a", "n": 1},)),
            ("delete", ("1",)),
        ]
        container.execute_item_batch(batch, partition_key="a")
        found = reader.page(max_item_count=1)
        assert operations(found) == ["create", "replace", "delete"]
        assert len({each["metadata"]["lsn"] for each in found}) == 1

    def test_a_failed_transaction_leaves_nothing(self, shop, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        with pytest.raises(Exception, match="transactional batch"):
            container.execute_item_batch(
                [("create", ({"id": "1", "pk": "a"},)), ("delete", ("none",))], partition_key="a"
            )
        assert reader.all() == []

    def test_the_server_refuses_that_as_well(self, shop, container, follow):
        """The server refuses the continuation of a feed that was read in another mode.

        The test changes the continuation by hand, so that it passes the client's own check.
        """
        import base64
        import json

        fill(container, 1)
        reader = follow(container, start_time="Beginning")
        reader.page()
        token = json.loads(base64.b64decode(reader.continuation))
        token["mode"] = ALL
        token["continuation"]["continuation"][0]["token"] = ""
        forged = base64.b64encode(json.dumps(token).encode()).decode()
        call = container.query_items_change_feed(continuation=forged).by_page()
        assert shop.fails(next, call) == (400, 0)

    def test_without_the_feature_it_is_400_and_says_so(self, make_shop):
        shop = make_shop(all_versions=False)
        container = shop.create()
        with pytest.raises(CosmosHttpResponseError, match="'All Versions and Deletes' mode must be enabled"):
            list(container.query_items_change_feed(mode=ALL, start_time="Now"))
        shop.server.all_versions(True)
        assert list(container.query_items_change_feed(mode=ALL, start_time="Now")) == []

    def test_one_feed_range_and_one_logical_partition(self, shop, follow):
        container = shop.create(partitions=2)
        first, second = container.read_feed_ranges()
        readers = {
            "first": follow(container, mode=ALL, start_time="Now", feed_range=first),
            "second": follow(container, mode=ALL, start_time="Now", feed_range=second),
            "one": follow(container, mode=ALL, start_time="Now", partition_key="k1"),
        }
        for reader in readers.values():
            assert reader.page() == []
        for number in range(10):
            container.create_item({"id": str(number), "pk": f"k{number % 5}"})
        found = {name: reader.all() for name, reader in readers.items()}
        assert len(found["first"]) + len(found["second"]) == 10
        assert {each["current"]["pk"] for each in found["one"]} == {"k1"}

    def test_both_modes_count_the_same_positions(self, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        fill(container, 3)
        latest = [each["_lsn"] for each in container.query_items_change_feed(start_time="Beginning")]
        assert [each["metadata"]["lsn"] for each in reader.all()] == latest


class TestRetention:
    def test_a_continuation_within_it_is_read(self, shop, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        fill(container, 3)
        shop.server.advance(6 * 24 * 3600)
        assert operations(reader.all()) == ["create"] * 3

    def test_an_older_one_is_refused(self, shop, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        fill(container, 3)
        shop.server.advance(8 * 24 * 3600)
        fill(container, 1, first=3)
        with pytest.raises(CosmosHttpResponseError, match="older than the retention") as caught:
            reader.all()
        assert caught.value.status_code == 400

    def test_an_idle_feed_does_not_fall_out(self, shop, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        fill(container, 3)
        reader.all()
        shop.server.advance(30 * 24 * 3600)
        assert reader.all() == []
        fill(container, 1, first=3)
        assert operations(reader.all()) == ["create"]

    def test_a_container_can_have_its_own(self, shop, follow):
        container = shop.create(change_feed_policy={"retentionDuration": 10})
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        fill(container, 1)
        shop.server.advance(9 * 60)
        assert len(reader.all()) == 1
        fill(container, 1, first=1)
        shop.server.advance(11 * 60)
        assert shop.fails(reader.all) == (400, 0)

    def test_what_is_trimmed_by_hand_is_gone(self, shop, container, follow):
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        fill(container, 2)
        shop.server.trim("shop", "orders")
        assert shop.fails(reader.all) == (400, 0)
        fresh = follow(container, mode=ALL, start_time="Now")
        fresh.page()
        fill(container, 1, first=2)
        assert len(fresh.all()) == 1


class TestIncarnations:
    def test_a_recreated_container_refuses_an_old_continuation(self, shop, container, follow):
        fill(container, 3)
        reader = follow(container, start_time="Beginning")
        reader.all()
        shop.database.delete_container("orders")
        again = shop.create()
        other = follow(again, continuation=reader.continuation)
        with pytest.raises(ValueError, match="Mismatch collection rid"):
            other.page()

    def test_resource_ids_are_new_in_every_server(self, shop, make_shop):
        other = make_shop()
        assert shop.database.read()["_rid"] != other.database.read()["_rid"]
        assert shop.create().read()["_rid"][6:] != other.create().read()["_rid"][6:]

    def test_another_server_does_as_well(self, shop, container, follow, make_shop):
        fill(container, 3)
        reader = follow(container, start_time="Beginning")
        reader.all()
        other = follow(make_shop().create(), continuation=reader.continuation)
        with pytest.raises(ValueError, match="Mismatch collection rid"):
            other.page()
