"""Tests items, conditional writes, patches and batches, through the unmodified azure-cosmos."""

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import (
    CosmosAccessConditionFailedError,
    CosmosBatchOperationError,
    CosmosResourceExistsError,
    CosmosResourceNotFoundError,
)
from azure.cosmos.partition_key import NonePartitionKeyValue, NullPartitionKeyValue

ORDER = {"id": "1", "pk": "a", "n": 1, "tags": ["x", "y"], "who": {"name": "Ada"}}


class TestPointOperations:
    def test_what_is_created_is_read(self, container):
        made = container.create_item(ORDER)
        assert {name: made[name] for name in ORDER} == ORDER
        assert container.read_item("1", "a") == made
        assert {"_rid", "_self", "_etag", "_attachments", "_ts"} <= made.keys()

    def test_the_same_id_in_two_logical_partitions(self, container):
        container.create_item(ORDER)
        container.create_item({**ORDER, "pk": "b"})
        assert container.read_item("1", "b")["pk"] == "b"

    def test_an_item_without_an_id_is_refused(self, shop, container):
        assert shop.fails(container.create_item, {"pk": "a"}) == (400, 0)

    @pytest.mark.parametrize(
        ("item_id", "status"),
        [
            ("a b", None),
            (" a", None),
            ("a?b", None),
            ("WithAllowedSpecial,=.:~+-@()^${}[]!_Chars", None),
            ("WithUnicode鱀", None),
            ("a/b", 404),
            ("a/", None),  # azure-cosmos asks for "a"
            ("a\rb", 400),
            ("a\tb", 400),
            ("a\nb", 400),
            ("a#b", 401),
            ("a ", 401),
            ("a%20", 401),
            ("a%E9%B1%80", 401),
        ],
    )
    def test_an_id_that_is_written_cannot_always_be_read(self, shop, container, item_id, status):
        """The answers are those that CosmosItemIdEncodingTestsBase.cs in azure-cosmos-dotnet-v3 expects."""
        container.create_item({"id": "a", "pk": "a"})
        # azure-cosmos checks the ids of items, but not those in a batch.
        container.execute_item_batch([("create", ({"id": item_id, "pk": "a"},))], "a")
        by_id = "SELECT VALUE c.id FROM c WHERE c.id = @id"
        named = [{"name": "@id", "value": item_id}]
        assert list(container.query_items(by_id, parameters=named, partition_key="a")) == [item_id]
        if status is None:
            read = container.read_item(item_id, "a")
            assert read["id"] == item_id.rstrip("/")
        else:
            assert shop.fails(container.read_item, item_id, "a") == (status, 0)

    def test_an_id_with_a_backslash_is_refused(self, shop, container):
        batch = [("create", ({"id": "a\\b", "pk": "a"},))]
        with pytest.raises(CosmosBatchOperationError) as caught:
            container.execute_item_batch(batch, "a")
        assert caught.value.status_code == 400

    def test_replace_keeps_the_resource_id_and_changes_the_etag(self, container):
        made = container.create_item(ORDER)
        changed = container.replace_item("1", {**ORDER, "n": 2})
        assert changed["_rid"] == made["_rid"]
        assert changed["_etag"] != made["_etag"]

    def test_what_is_not_there_is_not_replaced_read_or_deleted(self, container):
        for call in (
            lambda: container.replace_item("1", ORDER),
            lambda: container.read_item("1", "a"),
            lambda: container.delete_item("1", "a"),
            lambda: container.patch_item("1", "a", [{"op": "set", "path": "/n", "value": 2}]),
        ):
            with pytest.raises(CosmosResourceNotFoundError):
                call()

    def test_read_all_items_over_partitions_and_pages(self, shop):
        container = shop.create(partitions=3)
        for number in range(25):
            container.create_item({"id": str(number), "pk": str(number)})
        pages = [list(page) for page in container.read_all_items(max_item_count=10).by_page()]
        assert sorted(int(each["id"]) for page in pages for each in page) == list(range(25))
        assert [len(page) for page in pages] == [10, 10, 5]

    def test_a_change_of_the_id_is_not_offered(self, shop, container):
        container.create_item(ORDER)
        assert shop.fails(container.replace_item, "1", {**ORDER, "id": "2"}) == (501, 0)

    def test_an_item_of_more_than_two_megabytes_is_refused(self, shop, container):
        large = {"id": "1", "pk": "a", "text": "x" * (2 << 20)}
        assert shop.fails(container.create_item, large) == (413, 0)

    @pytest.mark.parametrize(
        "value", [0, -1, 1.5, 2**53, True, False, None, "", "é日本", [], {}, [1, [2]], {"a": {"b": None}}]
    )
    def test_a_value_comes_back_as_it_was(self, container, value):
        container.create_item({"id": "1", "pk": "a", "value": value})
        read = container.read_item("1", "a")["value"]
        assert read == value
        assert type(read) is type(value)

    def test_unique_keys_are_unique_inside_a_logical_partition(self, shop):
        unique = {"uniqueKeys": [{"paths": ["/who/name", "/n"]}]}
        container = shop.create(unique_key_policy=unique)
        container.create_item(ORDER)
        container.create_item({**ORDER, "id": "2", "pk": "b"})
        container.create_item({**ORDER, "id": "3", "n": 3})
        container.upsert_item({**ORDER, "tags": []})
        with pytest.raises(CosmosResourceExistsError):
            container.create_item({**ORDER, "id": "4"})

    def test_triggers_are_not_offered(self, shop, container):
        assert shop.fails(container.create_item, ORDER, pre_trigger_include="check") == (501, 0)
        assert list(container.read_all_items()) == []

    def test_a_charge_is_told(self, container):
        made = container.create_item({"id": "1", "pk": "a", "text": "x" * 3000})
        assert float(made.get_response_headers()["x-ms-request-charge"]) > 10
        read = container.read_item("1", "a")
        assert float(read.get_response_headers()["x-ms-request-charge"]) == 4.0


class TestPartitionKeys:
    @pytest.mark.parametrize("value", ["a", "", 0, 7, -1.5, 2**40, True, False])
    @pytest.mark.parametrize("version", [1, 2])
    def test_every_value_can_be_one(self, shop, value, version):
        container = shop.create(key=PartitionKey("/pk", version=version), partitions=2)
        container.create_item({"id": "1", "pk": value})
        assert container.read_item("1", value)["pk"] == value
        assert [each["pk"] for each in container.query_items("SELECT * FROM c", partition_key=value)] == [
            value
        ]

    def test_null_is_one(self, container):
        container.create_item({"id": "1", "pk": None})
        assert container.read_item("1", NullPartitionKeyValue)["pk"] is None

    def test_an_item_without_one_has_none(self, container):
        container.create_item({"id": "1"})
        container.create_item({"id": "1", "pk": None})
        assert "pk" not in container.read_item("1", NonePartitionKeyValue)

    @pytest.mark.parametrize(
        ("path", "item"),
        [
            ('/"first level\' 1*()"/"le/vel2"', {"first level' 1*()": {"le/vel2": "v"}}),
            ("/'first level\" 1*()'/'first le/vel2'", {'first level" 1*()': {"first le/vel2": "v"}}),
        ],
    )
    def test_its_path_may_have_names_in_quotes(self, shop, path, item):
        container = shop.create(key=path)
        container.create_item({"id": "1", **item})
        container.create_item({"id": "2"})
        found = container.query_items("SELECT VALUE c.id FROM c", partition_key="v")
        assert list(found) == ["1"]
        assert container.read_item("1", "v")["id"] == "1"

    def test_it_may_lie_deeper(self, shop):
        container = shop.create(key="/who/name")
        container.create_item(ORDER)
        assert container.read_item("1", "Ada")["n"] == 1

    def test_a_hierarchical_one_has_all_its_levels(self, shop):
        container = shop.create(key=PartitionKey(["/tenant", "/user"], kind="MultiHash"))
        container.create_item({"id": "1", "tenant": "t", "user": 5})
        assert container.read_item("1", ["t", 5])["user"] == 5
        assert shop.fails(container.read_item, "1", ["t"]) == (400, 1001)
        with pytest.raises(CosmosResourceNotFoundError):
            container.read_item("1", ["t", 6])


class TestConditions:
    @pytest.mark.parametrize("operation", ["upsert", "delete", "patch"])
    def test_every_write_can_have_one(self, container, operation):
        container.create_item(ORDER)
        stale = {"etag": '"other"', "match_condition": MatchConditions.IfNotModified}
        calls = {
            "upsert": lambda: container.upsert_item(ORDER, **stale),
            "delete": lambda: container.delete_item("1", "a", **stale),
            "patch": lambda: container.patch_item(
                "1", "a", [{"op": "set", "path": "/n", "value": 2}], **stale
            ),
        }
        with pytest.raises(CosmosAccessConditionFailedError):
            calls[operation]()
        assert container.read_item("1", "a")["n"] == 1

    def test_if_modified_refuses_the_version_that_is_there(self, container):
        made = container.create_item(ORDER)
        changed = {"etag": made["_etag"], "match_condition": MatchConditions.IfModified}
        with pytest.raises(CosmosAccessConditionFailedError):
            container.replace_item("1", ORDER, **changed)

    def test_upsert_if_missing_creates_and_never_replaces(self, container):
        missing = {"match_condition": MatchConditions.IfMissing}
        container.upsert_item(ORDER, **missing)
        with pytest.raises(CosmosAccessConditionFailedError):
            container.upsert_item(ORDER, **missing)

    def test_upsert_if_not_modified_creates_what_is_not_there(self, container):
        stale = {"etag": '"other"', "match_condition": MatchConditions.IfNotModified}
        assert container.upsert_item(ORDER, **stale)["n"] == 1

    def test_replace_if_present(self, container):
        container.create_item(ORDER)
        changed = container.replace_item("1", {**ORDER, "n": 9}, match_condition=MatchConditions.IfPresent)
        assert changed["n"] == 9


class TestPatch:
    @pytest.mark.parametrize(
        ("operations", "expected"),
        [
            ([{"op": "add", "path": "/new", "value": {"deep": 1}}], {"new": {"deep": 1}}),
            ([{"op": "add", "path": "/tags/1", "value": "z"}], {"tags": ["x", "z", "y"]}),
            ([{"op": "add", "path": "/tags/-", "value": "z"}], {"tags": ["x", "y", "z"]}),
            ([{"op": "set", "path": "/tags/0", "value": "z"}], {"tags": ["z", "y"]}),
            ([{"op": "remove", "path": "/tags/0"}], {"tags": ["y"]}),
            ([{"op": "incr", "path": "/fresh", "value": 4}], {"fresh": 4}),
        ],
    )
    def test_an_operation(self, container, operations, expected):
        container.create_item(ORDER)
        changed = container.patch_item("1", "a", operations)
        assert {name: changed[name] for name in expected} == expected
        assert container.read_item("1", "a") == changed

    @pytest.mark.parametrize(
        "operations",
        [
            [{"op": "replace", "path": "/none", "value": 1}],
            [{"op": "remove", "path": "/none"}],
            [{"op": "set", "path": "/none/deep", "value": 1}],
            [{"op": "incr", "path": "/tags", "value": 1}],
            [{"op": "incr", "path": "/n", "value": "1"}],
            [{"op": "set", "path": "/id", "value": "2"}],
            [{"op": "set", "path": "/pk", "value": "b"}],
            [{"op": "add", "path": "/tags/9", "value": 1}],
            [{"op": "jump", "path": "/n", "value": 1}],
            [{"op": "set", "path": "n", "value": 1}],
            [{"op": "incr", "path": "/n", "value": 1}] * 11,
            [],
        ],
    )
    def test_one_that_cannot_be_changes_nothing(self, shop, container, operations):
        made = container.create_item(ORDER)
        assert shop.fails(container.patch_item, "1", "a", operations) == (400, 0)
        assert container.read_item("1", "a") == made

    def test_a_filter_decides(self, container):
        container.create_item(ORDER)
        operations = [{"op": "set", "path": "/n", "value": 2}]
        container.patch_item("1", "a", operations, filter_predicate="FROM c WHERE c.n = 1")
        with pytest.raises(CosmosAccessConditionFailedError):
            container.patch_item("1", "a", operations, filter_predicate="FROM c WHERE c.n = 1")


class TestBatches:
    def test_all_kinds_of_operations_happen_together(self, container):
        container.create_item(ORDER)
        results = container.execute_item_batch(
            [
                ("create", ({"id": "2", "pk": "a"},)),
                ("upsert", ({"id": "3", "pk": "a"},)),
                ("upsert", ({"id": "3", "pk": "a", "n": 3},)),
                ("read", ("1",)),
                ("replace", ("1", {**ORDER, "n": 2})),
                ("patch", ("1", [{"op": "incr", "path": "/n", "value": 5}])),
                ("delete", ("2",)),
            ],
            partition_key="a",
        )
        assert [each["statusCode"] for each in results] == [201, 201, 200, 200, 200, 200, 204]
        assert results[5]["resourceBody"]["n"] == 7
        assert results[5]["eTag"] == container.read_item("1", "a")["_etag"]
        assert sorted(each["id"] for each in container.read_all_items()) == ["1", "3"]

    def test_one_that_fails_undoes_all(self, container):
        container.create_item(ORDER)
        with pytest.raises(CosmosBatchOperationError) as caught:
            container.execute_item_batch(
                [
                    ("create", ({"id": "2", "pk": "a"},)),
                    ("create", (ORDER,)),
                    ("delete", ("1",)),
                ],
                partition_key="a",
            )
        assert caught.value.error_index == 1
        assert caught.value.status_code == 409
        assert [each["statusCode"] for each in caught.value.operation_responses] == [424, 409, 424]
        assert [each["id"] for each in container.read_all_items()] == ["1"]

    def test_conditions_and_filters_inside(self, container):
        made = container.create_item(ORDER)
        patch = ("patch", ("1", [{"op": "set", "path": "/n", "value": 2}]))
        container.execute_item_batch(
            [(*patch, {"filter_predicate": "FROM c WHERE c.n = 1", "if_match_etag": made["_etag"]})],
            partition_key="a",
        )
        for condition in ({"if_match_etag": made["_etag"]}, {"filter_predicate": "FROM c WHERE c.n = 1"}):
            with pytest.raises(CosmosBatchOperationError) as caught:
                container.execute_item_batch([(*patch, condition)], partition_key="a")
            assert caught.value.status_code == 412


class TestReadMany:
    @pytest.mark.parametrize("key", ["/id", "/who/name"])
    def test_by_other_partition_keys(self, shop, key):
        container = shop.create(key=key)
        for name in "xyz":
            container.create_item({"id": name, "who": {"name": name}})
        assert len(container.read_items([(name, name) for name in "xyz"])) == 3

    def test_by_hierarchical_ones(self, shop):
        container = shop.create(key=PartitionKey(["/tenant", "/user"], kind="MultiHash"), partitions=2)
        for number in range(6):
            container.create_item({"id": str(number), "tenant": f"t{number % 2}", "user": number})
        items = [(str(number), [f"t{number % 2}", number]) for number in range(6)]
        assert [each["user"] for each in container.read_items(items)] == list(range(6))
