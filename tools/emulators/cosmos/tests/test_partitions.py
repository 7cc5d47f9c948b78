"""Tests effective partition keys, feed ranges and hierarchical keys.

The server must agree with the SDK, except where the vendor's other SDKs do not.
"""

import pytest
from azure.cosmos import PartitionKey
from azure.cosmos.partition_key import NonePartitionKeyValue, NullPartitionKeyValue

from multiclouddb_cosmos_emulator.values import UNDEFINED

VALUES = [
    *("1", "a", "", "pk", "x" * 99, "x" * 100, "x" * 101, "x" * 300, "é" * 70, "日本" * 60),
    *(0, 1, -1, 255, 2**31, 2**33, 1.5, -2.5, 1e300, True, False),
]


def named(value):
    return f"{str(value)[:8]}-{type(value).__name__}-{len(str(value))}"


def range_of(feed_range):
    """Return the two ends of a feed range. The SDK has no public way to get these ends."""
    ends = feed_range["Range"]
    return ends["min"].upper(), ends["max"].upper()


class TestHashing:
    @pytest.mark.parametrize("version", [1, 2])
    @pytest.mark.parametrize("value", VALUES, ids=named)
    def test_a_key_lies_where_the_client_says(self, shop, version, value):
        container = shop.create(key=PartitionKey("/pk", version=version))
        if version == 1 and type(value) is int:  # which azure-cosmos cuts to 32 bits
            value = float(value)
        low, _ = range_of(container.feed_range_from_partition_key(value))
        assert low == shop.server.effective_key(value, version=version)

    # With version 1, azure-cosmos leaves out null.
    @pytest.mark.parametrize(
        ("version", "given", "value"),
        [
            (2, NullPartitionKeyValue, None),
            (1, NonePartitionKeyValue, UNDEFINED),
            (2, NonePartitionKeyValue, UNDEFINED),
        ],
    )
    def test_null_and_nothing_do(self, shop, version, given, value):
        container = shop.create(key=PartitionKey("/pk", version=version))
        low, _ = range_of(container.feed_range_from_partition_key(given))
        assert low == shop.server.effective_key(value, version=version)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("1", "3C80B1B7310BB39F29CC4EA05BDD461E"),
            ("pk", "20FD8FE780DCFA0692905152C35E10D9"),
            ("", "32E9366E637A71B4E710384B2F4970A0"),
            (0, "155B95BEDAC4B1E9EC1CDC9BB0DDDE58"),
            (True, "0E711127C5B5A8E4726AC6DD306A3E59"),
            (False, "2FE1BE91E90A3439635E0E9E37361EF2"),
            (None, "378867E4430E67857ACE5C908374FE16"),
            (UNDEFINED, "11622DAA78F835834610ABE56EFF5CB5"),
        ],
        ids=repr,
    )
    def test_known_answers(self, server, value, expected):
        assert server.effective_key(value) == expected

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("", "05C1CF33970FF80800"),
            ("partitionKey", "05C1E1B3D9CD2608716273756A756A706F4C667A00"),
            ("a" * 1024, "05C1EB5921F70608" + 100 * "62" + "00"),
            (None, "05C1ED45D7475601"),
            (UNDEFINED, "05C1D529E345DC00"),
            (True, "05C1D7C5A903D803"),
            (False, "05C1DB857D857C02"),
            (-(2**7), "05C1D73349F54C053FA0"),
            (-(2**63), "05C1DB35F33D1C053C20"),
            (2**63 - 1, "05C1B799AB2DD005C3E0"),
            (2**31 - 1, "05C1E1F503DFB205C1DFFFFFFFFC"),
            (1.7976931348623157e308, "05C1CBE367C53005FFEFFFFFFFFFFFFFFE"),
        ],
        ids=lambda value: repr(value)[:20],
    )
    def test_known_answers_of_version_1(self, server, value, expected):
        """The values are those of `PartitionKeyHashingTests` in Azure/azure-sdk-for-java."""
        assert server.effective_key(value, version=1) == expected

    @pytest.mark.parametrize("levels", [["t"], ["t", 5], ["t", 5, True], ["", None, ""]])
    def test_a_hierarchical_key_and_its_prefixes(self, shop, levels):
        container = shop.create(key=PartitionKey(["/a", "/b", "/c"], kind="MultiHash"))
        low, high = range_of(container.feed_range_from_partition_key(levels))
        assert low == shop.server.effective_key(*levels, kind="MultiHash")
        assert high == (low if len(levels) == 3 else low + "FF")


class TestRanges:
    @pytest.mark.parametrize("partitions", [1, 2, 3, 5])
    @pytest.mark.parametrize("version", [1, 2])
    def test_they_cover_all_keys_without_a_gap(self, shop, partitions, version):
        container = shop.create(key=PartitionKey("/pk", version=version), partitions=partitions)
        ranges = [range_of(each) for each in container.read_feed_ranges()]
        assert len(ranges) == partitions
        assert ranges[0][0] == ""
        assert ranges[-1][1] == "FF"
        assert [high for _, high in ranges[:-1]] == [low for low, _ in ranges[1:]]

    def test_two_partitions_meet_where_the_service_s_do(self, shop):
        container = shop.create(partitions=2)
        assert range_of(next(iter(container.read_feed_ranges())))[1] == "1F" + "FF" * 15

    @pytest.mark.parametrize("version", [1, 2])
    def test_keys_spread_over_them(self, shop, version):
        container = shop.create(key=PartitionKey("/pk", version=version), partitions=4)
        for number in range(80):
            container.create_item({"id": str(number), "pk": f"key {number}"})
        assert all(each["items"] > 5 for each in shop.partitions())

    def test_a_key_s_range_lies_in_one_of_them(self, shop):
        container = shop.create(partitions=3)
        ranges = list(container.read_feed_ranges())
        one = container.feed_range_from_partition_key("a")
        assert [container.is_feed_range_subset(each, one) for each in ranges].count(True) == 1

    def test_the_list_is_asked_for_until_it_does_not_change(self, shop, server):
        container = shop.create(partitions=3)
        list(container.read_feed_ranges())
        list(container.read_feed_ranges())
        assert [each.status for each in server.journal.entries("ListPartitions")] == [200, 304]

    def test_a_refresh_finds_a_split(self, shop):
        container = shop.create()
        assert len(list(container.read_feed_ranges())) == 1
        shop.split()
        assert len(list(container.read_feed_ranges())) == 1
        assert len(list(container.read_feed_ranges(force_refresh=True))) == 2


class TestHierarchy:
    @pytest.fixture
    def tree(self, shop):
        """Make items of 4 tenants with 5 users each, in three partitions."""
        container = shop.create(key=PartitionKey(["/tenant", "/user"], kind="MultiHash"), partitions=3)
        for number in range(20):
            container.create_item({"id": str(number), "tenant": f"t{number % 4}", "user": number})
        return container

    def test_a_prefix_sees_its_items(self, tree):
        found = tree.query_items("SELECT VALUE c.user FROM c", partition_key=["t1"])
        assert sorted(found) == [1, 5, 9, 13, 17]

    @pytest.mark.parametrize("prefix", [["t"], [""], [None, 1], [255, 255], ["t1", "1"], ("t1", None)])
    def test_one_that_no_item_has_sees_nothing(self, tree, prefix):
        assert list(tree.query_items("SELECT * FROM c", partition_key=prefix)) == []

    def test_a_point_operation_needs_the_whole_key(self, shop, tree):
        assert shop.fails(tree.read_item, "1", ["t1"]) == (400, 1001)
        assert shop.fails(tree.delete_all_items_by_partition_key, ["t1"]) == (400, 1001)

    def test_a_whole_key_sees_one(self, tree):
        assert list(tree.query_items("SELECT VALUE c.user FROM c", partition_key=["t1", 5])) == [5]

    def test_a_prefix_that_spans_partitions(self, shop, tree):
        boundary = shop.server.effective_key("t1", 9, kind="MultiHash")
        home = shop.server.partition_of("shop", "orders", "t1", 9)
        shop.split(home, boundary=boundary)
        found = tree.query_items("SELECT VALUE c.user FROM c", partition_key=["t1"])
        assert sorted(found) == [1, 5, 9, 13, 17]

    def test_the_change_feed_of_a_prefix(self, tree):
        found = tree.query_items_change_feed(partition_key=["t2"], start_time="Beginning")
        assert sorted(each["user"] for each in found) == [2, 6, 10, 14, 18]

    def test_an_item_that_lacks_a_level_is_refused_for_the_client_says_null(self, shop, tree):
        assert shop.fails(tree.create_item, {"id": "none", "tenant": "t1"}) == (400, 1001)
        tree.create_item({"id": "none", "tenant": "t1", "user": None})
