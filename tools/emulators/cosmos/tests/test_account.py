"""Tests the account, databases, containers and offers, through the unmodified azure-cosmos."""

import base64

import pytest
from azure.cosmos import CosmosClient, PartitionKey
from azure.cosmos.exceptions import (
    CosmosHttpResponseError,
    CosmosResourceExistsError,
)


class TestAccount:
    def test_it_tells_its_endpoint_and_that_sessions_are_consistent(self, shop):
        account = shop.client.get_database_account()
        assert account.ConsistencyPolicy == {"defaultConsistencyLevel": "Session"}
        (location,) = account.WritableLocations
        assert location["databaseAccountEndpoint"] == shop.server.endpoint

    def test_a_wrong_key_is_refused(self, server):
        wrong = base64.b64encode(b"not the key of this account").decode()
        with pytest.raises(CosmosHttpResponseError) as caught:
            CosmosClient(server.endpoint, wrong)
        assert caught.value.status_code == 401

    def test_a_connection_string_connects(self, server):
        text = f"AccountEndpoint={server.endpoint};AccountKey={server.key};"
        with CosmosClient.from_connection_string(text) as client:
            assert [each["id"] for each in client.list_databases()] == ["shop"]

    def test_another_key_can_be_chosen(self, make_shop):
        key = base64.b64encode(b"a key of one's own").decode()
        shop = make_shop(key=key)
        assert shop.server.key == key
        assert shop.database.read()["id"] == "shop"

    def test_it_is_reached_by_address_as_well(self, server, connected):
        with connected(server.endpoint.replace("localhost", "127.0.0.1"), server.key) as client:
            assert (
                client.get_database_account()
                .WritableLocations[0]["databaseAccountEndpoint"]
                .startswith("http://127.0.0.1:")
            )


class TestDatabases:
    def test_a_name_is_taken_once(self, shop):
        with pytest.raises(CosmosResourceExistsError):
            shop.client.create_database("shop")

    def test_they_are_listed_and_queried(self, shop):
        shop.client.create_database("books")
        assert {each["id"] for each in shop.client.list_databases()} == {"shop", "books"}
        query, parameters = "SELECT * FROM d WHERE d.id = @id", [{"name": "@id", "value": "books"}]
        assert [each["id"] for each in shop.client.query_databases(query, parameters)] == ["books"]

    def test_deleting_one_deletes_its_containers(self, shop):
        container = shop.create()
        shop.client.delete_database("shop")
        shop.client.create_database("shop")
        assert shop.fails(container.read) == (404, 1003)

    def test_a_name_of_eight_letters_that_looks_like_a_resource_id(self, shop):
        database = shop.client.create_database("testbase")
        container = database.create_container("orders", PartitionKey("/pk"))
        container.create_item({"id": "1", "pk": "a"})
        assert container.read_item("1", "a")["pk"] == "a"

    def test_a_name_with_spaces_and_letters_of_any_language(self, shop):
        database = shop.client.create_database("Käse & Söhne 日本")
        container = database.create_container("ein Käse", PartitionKey("/pk"))
        container.create_item({"id": "é è 日本", "pk": "ß"})
        assert container.read_item("é è 日本", "ß")["pk"] == "ß"


class TestContainers:
    def test_one_is_created_read_and_deleted(self, shop):
        container = shop.create(default_ttl=60)
        properties = container.read()
        assert properties["id"] == "orders"
        assert properties["partitionKey"] == {"paths": ["/pk"], "kind": "Hash", "version": 2}
        assert properties["defaultTtl"] == 60
        assert properties["indexingPolicy"]["indexingMode"] == "consistent"
        shop.database.delete_container("orders")
        assert shop.fails(container.read) == (404, 1003)

    def test_a_name_is_taken_once(self, shop, container):
        with pytest.raises(CosmosResourceExistsError):
            shop.create()

    def test_one_that_is_there_is_not_created_again(self, shop, container):
        again = shop.database.create_container_if_not_exists("orders", PartitionKey("/pk"))
        assert again.read()["_rid"] == container.read()["_rid"]
        assert (
            shop.database.create_container_if_not_exists("more", PartitionKey("/pk")).read()["id"] == "more"
        )

    def test_a_client_is_had_without_a_request(self, shop, server):
        before = server.journal.count()
        shop.client.get_database_client("shop").get_container_client("none")
        assert server.journal.count() == before

    def test_its_time_to_live_is_replaced(self, shop, container):
        key = PartitionKey("/pk")
        assert shop.database.replace_container("orders", key, default_ttl=5).read()["defaultTtl"] == 5
        assert "defaultTtl" not in shop.database.replace_container("orders", key).read()

    def test_its_usage_is_told_when_asked_for(self, container):
        for number in range(3):
            container.create_item({"id": str(number), "pk": "a"})
        told = container.read(populate_quota_info=True).get_response_headers()
        assert "documentsCount=3;" in told["x-ms-resource-usage"]
        assert told["x-ms-resource-quota"]

    def test_its_partition_key_stays(self, shop, container):
        assert shop.fails(shop.database.replace_container, "orders", PartitionKey("/other")) == (400, 0)

    @pytest.mark.parametrize("policy", [{"uniqueKeys": [{"paths": ["name"]}]}, {"uniqueKeys": "/name"}])
    def test_unique_keys_have_paths(self, shop, policy):
        assert shop.fails(shop.create, unique_key_policy=policy) == (400, 0)

    @pytest.mark.parametrize(
        "key",
        [
            PartitionKey(["/a", "/b", "/c", "/d"], kind="MultiHash"),
            {"paths": ["/a", "/b"], "kind": "Hash", "version": 2},
            PartitionKey("pk"),
            PartitionKey("/pk", version=7),
        ],
    )
    def test_a_partition_key_that_the_service_does_not_know_is_refused(self, shop, key):
        assert shop.fails(shop.create, key=key) == (400, 0)

    def test_a_recreated_one_has_another_resource_id(self, shop, container):
        rid = container.read()["_rid"]
        shop.database.delete_container("orders")
        assert shop.create().read()["_rid"] != rid

    def test_a_client_that_knows_the_old_one_finds_the_new_one(self, shop, container, server):
        with shop.connect() as other:
            stale = other.get_database_client("shop").get_container_client("orders")
            stale.create_item({"id": "1", "pk": "a"})
            shop.database.delete_container("orders")
            shop.create().create_item({"id": "1", "pk": "a", "new": True})
            assert stale.read_item("1", "a")["new"]
        refused = [each for each in server.journal.entries("ReadItem") if each.substatus == 1024]
        assert [each.status for each in refused] == [400]


class TestThroughput:
    def test_a_container_has_400_units_unless_told_otherwise(self, shop):
        container = shop.database.create_container("plain", PartitionKey("/pk"))
        assert container.get_throughput().offer_throughput == 400

    @pytest.mark.parametrize("units", [0, 50, 450])
    def test_it_is_a_multiple_of_100_and_at_least_400(self, shop, container, units):
        assert shop.fails(container.replace_throughput, units) == (400, 0)

    def test_a_database_has_its_own(self, shop):
        database = shop.client.create_database("shared", offer_throughput=1000)
        assert database.get_throughput().offer_throughput == 1000
        assert database.replace_throughput(2000).offer_throughput == 2000
        # The container has no offer of its own and shares the database's offer, so it keeps one partition.
        database.create_container("orders", PartitionKey("/pk")).create_item({"id": "1", "pk": "a"})
        assert len(shop.server.partitions("shared", "orders")) == 1

    def test_read_offer_is_get_throughput_by_its_old_name(self, shop, container):
        with pytest.warns(DeprecationWarning, match="read_offer"):
            assert container.read_offer().offer_throughput == 6_000
        database = shop.client.create_database("shared", offer_throughput=1000)
        with pytest.warns(DeprecationWarning, match="read_offer"):
            assert database.read_offer().offer_throughput == 1000

    @pytest.mark.parametrize(
        ("units", "partitions"), [(400, 1), (10_000, 1), (10_100, 2), (12_000, 2), (30_000, 5)]
    )
    def test_a_new_container_has_so_many_partitions(self, shop, units, partitions):
        shop.database.create_container("large", PartitionKey("/pk"), offer_throughput=units)
        assert len(shop.partitions("large")) == partitions
