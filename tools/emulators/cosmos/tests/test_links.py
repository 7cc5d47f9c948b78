"""Tests what the tests of azure-cosmos found: links of resource ids, sizes, numbers of partitions, texts."""

import pytest
from azure.cosmos import PartitionKey, ThroughputProperties
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceNotFoundError


class TestLinks:
    """An item that a client has read contains its own link, which consists of resource ids."""

    def test_an_item_is_read_replaced_patched_and_deleted_by_what_creating_returned(self, container):
        item = container.create_item({"id": "1", "pk": "a"})
        other = container.create_item({"id": "2", "pk": "a"})
        assert container.read_item(item, "a")["id"] == "1"
        assert container.replace_item(item, {"id": "1", "pk": "a", "n": 2})["n"] == 2
        operations = [{"op": "set", "path": "/n", "value": 3}]
        assert container.patch_item(item, "a", operations)["n"] == 3
        container.delete_item(item, "a")
        with pytest.raises(CosmosResourceNotFoundError):
            container.read_item(item, "a")
        assert [each["id"] for each in container.read_all_items()] == [other["id"]]

    def test_the_id_of_an_item_is_not_a_resource_id(self, container):
        item = container.create_item({"id": "1", "pk": "a"})
        with pytest.raises(CosmosResourceNotFoundError):
            container.read_item(item["_rid"], "a")


class TestPartitions:
    def test_a_client_that_knew_the_container_before_sees_the_new_ranges(self, shop):
        """The list of partitions of another container with the same name never has the same etag."""
        before = shop.create()
        assert len(list(before.read_feed_ranges())) == 1
        shop.database.delete_container("orders")
        after = shop.create(partitions=3)
        for number in range(12):
            after.create_item({"id": str(number), "pk": f"k{number}"})
        assert len(list(after.query_items("SELECT * FROM c", enable_cross_partition_query=True))) == 12
        assert len(list(before.read_feed_ranges(force_refresh=True))) == 3

    def test_the_boundaries_of_five(self, shop):
        shop.create(partitions=5)
        assert [each["low"] for each in shop.partitions()] == [
            "",
            "0CCCCCCCCCCCCCCCCCCCCCCCCCCCCCCC",
            "19999999999999999999999999999998",
            "26666666666666666666666666666664",
            "33333333333333333333333333333330",
        ]


class TestRefusals:
    def test_a_text_is_measured_as_it_is_sent(self, shop, container):
        """By default, azure-cosmos sends a character of Chinese as six bytes."""
        item = {"id": "1", "pk": "a", "text": "中" * 400_000}
        assert shop.fails(container.create_item, item)[0] == 413
        assert shop.fails(container.upsert_item, item)[0] == 413
        container.create_item({"id": "1", "pk": "a"})
        assert shop.fails(container.replace_item, "1", item)[0] == 413

    def test_four_levels_are_refused_before_a_name_that_is_taken(self, shop, container):
        key = PartitionKey(["/a", "/b", "/c", "/d"], kind="MultiHash")
        with pytest.raises(CosmosHttpResponseError, match="Too many partition key paths") as caught:
            shop.create(key=key)
        assert caught.value.status_code == 400

    def test_a_name_that_is_too_long(self, shop, container):
        for make, most in (
            (lambda name: shop.client.create_database(name), 255),
            (lambda name: shop.create(name), 255),
            (lambda name: container.create_item({"id": name, "pk": "a"}), 1023),
        ):
            with pytest.raises(CosmosHttpResponseError, match="unique non-empty string less than") as caught:
                make("x" * (most + 1))
            assert caught.value.status_code == 400

    def test_too_little_throughput(self, shop):
        little = ThroughputProperties(auto_scale_max_throughput=-200)
        with pytest.raises(CosmosHttpResponseError, match="Requested throughput -200 is less than required"):
            shop.database.create_container("auto", PartitionKey("/pk"), offer_throughput=little)

    def test_an_empty_batch(self, container):
        with pytest.raises(CosmosHttpResponseError, match="Batch request has no operations"):
            container.execute_item_batch([], "a")

    def test_an_incomplete_key(self, shop):
        container = shop.create(key=PartitionKey(["/a", "/b"], kind="MultiHash"))
        item = {"id": "1", "a": "x", "b": "y"}
        with pytest.raises(CosmosHttpResponseError, match="doesn't correspond to definition"):
            container.execute_item_batch([("create", (item,))], ["x"])


class TestKeys:
    def test_an_object_is_no_key(self, container):
        container.create_item({"id": "1", "pk": {"a": 1}})
        (item,) = container.read_all_items()
        assert item["pk"] == {"a": 1}


class TestIndexing:
    @pytest.mark.parametrize(
        "policy",
        [
            None,
            {},
            {"indexingMode": "consistent", "automatic": True},
            {"includedPaths": [{"path": "/*", "indexes": [{"kind": "Hash", "dataType": "String"}]}]},
        ],
    )
    def test_a_policy_is_completed(self, shop, policy):
        container = shop.create(indexing_policy=policy)
        found = container.read()["indexingPolicy"]
        assert found["includedPaths"] == [{"path": "/*"}]
        assert [each["path"] for each in found["excludedPaths"]] == ['/"_etag"/?']

    def test_the_etag_is_always_excluded(self, shop):
        policy = {"excludedPaths": [{"path": "/a/*"}]}
        container = shop.create(indexing_policy=policy)
        found = container.read(populate_quota_info=True)
        assert [each["path"] for each in found["indexingPolicy"]["excludedPaths"]] == ["/a/*", '/"_etag"/?']


class TestQueries:
    @pytest.mark.parametrize("partitions", [1, 3])
    def test_an_aggregate_has_no_order(self, shop, partitions):
        container = shop.create(partitions=partitions)
        query = "SELECT VALUE SUM(c.n) FROM c WHERE c.n > 0 ORDER BY c.n"
        for number in range(6):
            assert list(container.query_items(query, enable_cross_partition_query=True)) == [
                sum(range(number))
            ]
            container.create_item({"id": str(number), "pk": f"k{number}", "n": number})
