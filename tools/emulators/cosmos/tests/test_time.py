"""Tests time to live and sessions, through the unmodified azure-cosmos."""

import pytest
from azure.cosmos.exceptions import CosmosResourceNotFoundError

ALL = "AllVersionsAndDeletes"


class TestTimeToLive:
    def test_an_item_expires_by_the_container_s(self, shop):
        container = shop.create(default_ttl=60)
        container.create_item({"id": "1", "pk": "a"})
        shop.server.advance(59)
        assert container.read_item("1", "a")["id"] == "1"
        shop.server.advance(2)
        with pytest.raises(CosmosResourceNotFoundError):
            container.read_item("1", "a")

    @pytest.mark.parametrize(("default", "own", "lives"), [(60, -1, True), (60, 500, True), (-1, 10, False)])
    def test_an_item_may_have_its_own(self, shop, default, own, lives):
        container = shop.create(default_ttl=default)
        container.create_item({"id": "1", "pk": "a", "ttl": own})
        shop.server.advance(100)
        assert bool(list(container.read_all_items())) is lives

    def test_without_the_container_s_nothing_expires(self, shop, container):
        container.create_item({"id": "1", "pk": "a", "ttl": 10})
        shop.server.advance(100)
        assert container.read_item("1", "a")["ttl"] == 10

    @pytest.mark.parametrize("ttl", ["5", 1.5, True])
    def test_another_value_is_refused(self, shop, container, ttl):
        assert shop.fails(container.create_item, {"id": "1", "pk": "a", "ttl": ttl}) == (400, 0)

    def test_a_write_begins_it_anew(self, shop):
        container = shop.create(default_ttl=60)
        container.create_item({"id": "1", "pk": "a"})
        shop.server.advance(50)
        container.upsert_item({"id": "1", "pk": "a"})
        shop.server.advance(50)
        assert container.read_item("1", "a")["id"] == "1"

    def test_an_expired_item_can_be_created_again(self, shop):
        container = shop.create(default_ttl=60)
        container.create_item({"id": "1", "pk": "a"})
        shop.server.advance(61)
        container.create_item({"id": "1", "pk": "a"})

    def test_queries_do_not_see_it(self, shop):
        container = shop.create(default_ttl=60)
        container.create_item({"id": "1", "pk": "a"})
        shop.server.advance(61)
        assert list(container.query_items("SELECT * FROM c", partition_key="a")) == []

    def test_all_versions_tell_that_it_expired(self, shop, follow):
        container = shop.create(default_ttl=60)
        reader = follow(container, mode=ALL, start_time="Now")
        reader.page()
        container.create_item({"id": "1", "pk": "a"})
        container.create_item({"id": "2", "pk": "a"})
        container.delete_item("2", "a")
        shop.server.advance(61)
        found = [each["metadata"] for each in reader.all()]
        assert [(each["operationType"], each.get("timeToLiveExpired")) for each in found] == [
            ("create", None),
            ("create", None),
            ("delete", None),
            ("delete", True),
        ]
        assert found[3]["id"] == "1"
        assert found[3]["partitionKey"] == {"pk": "a"}

    def test_a_new_time_to_live_is_every_item_s(self, shop, container):
        container.create_item({"id": "1", "pk": "a"})
        definition = container.read()["partitionKey"]
        shop.database.replace_container("orders", definition, default_ttl=30)
        shop.server.advance(31)
        assert list(container.read_all_items()) == []

    def test_expire_counts(self, shop):
        container = shop.create(default_ttl=60)
        for number in range(5):
            container.create_item({"id": str(number), "pk": "a"})
        assert shop.server.expire("shop", "orders") == 0
        shop.server.advance(61)
        assert shop.server.expire("shop", "orders") == 5


class TestSessions:
    def test_every_answer_about_items_has_a_token(self, shop, container):
        made = container.create_item({"id": "1", "pk": "a"})
        token = made.get_response_headers()["x-ms-session-token"]
        range_id, _, vector = token.partition(":")
        assert range_id == "0"
        assert vector == f"0#{shop.partitions()[0]['lsn']}#1={shop.partitions()[0]['lsn']}"

    def test_a_reader_sends_what_it_has_seen(self, server, container):
        made = container.create_item({"id": "1", "pk": "a"})
        container.read_item("1", "a")
        (read,) = server.journal.entries("ReadItem")
        assert read.headers["x-ms-session-token"] == made.get_response_headers()["x-ms-session-token"]

    def test_a_token_of_the_future_is_not_available(self, shop, server, container):
        container.create_item({"id": "1", "pk": "a"})
        ahead = {"session_token": "0:0#999#1=999"}
        assert shop.fails(container.read_item, "1", "a", **ahead) == (404, 1002)
        assert server.journal.count("ReadItem") == 2

    def test_another_client_reads_with_the_token_of_the_writer(self, shop, container):
        made = container.create_item({"id": "1", "pk": "a"})
        token = made.get_response_headers()["x-ms-session-token"]
        with shop.connect() as other:
            read = other.get_database_client("shop").get_container_client("orders")
            assert read.read_item("1", "a", session_token=token)["id"] == "1"

    def test_eventual_consistency_sends_none(self, shop, server, container):
        with shop.connect(consistency_level="Eventual") as other:
            plain = other.get_database_client("shop").get_container_client("orders")
            plain.create_item({"id": "1", "pk": "a"})
            plain.read_item("1", "a")
        (read,) = server.journal.entries("ReadItem")
        assert "x-ms-session-token" not in read.headers

    @pytest.mark.parametrize("level", ["Strong", "BoundedStaleness"])
    def test_a_stronger_consistency_than_the_account_s_is_refused(self, shop, container, level):
        with shop.connect(consistency_level=level) as other:
            strong = other.get_database_client("shop").get_container_client("orders")
            assert shop.fails(strong.read_item, "1", "a") == (400, 0)

    def test_sessions_go_on_over_a_split(self, shop, container):
        for number in range(10):
            container.create_item({"id": str(number), "pk": f"k{number}"})
        shop.split()
        assert container.read_item("3", "k3")["id"] == "3"
        container.upsert_item({"id": "3", "pk": "k3", "n": 1})
        assert container.read_item("3", "k3")["n"] == 1

    def test_the_latest_of_several_tokens(self, shop):
        container = shop.create(partitions=2)
        tokens = []
        for number in range(4):
            made = container.create_item({"id": str(number), "pk": "a"})
            token = made.get_response_headers()["x-ms-session-token"]
            tokens.append((container.feed_range_from_partition_key("a"), token))
        target = container.feed_range_from_partition_key("a")
        assert container.get_latest_session_token(tokens, target) == tokens[-1][1]
