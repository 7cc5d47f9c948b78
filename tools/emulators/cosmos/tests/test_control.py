"""Tests the control API over HTTP, for a server in another process."""

import json
import urllib.error
import urllib.request

import pytest
from azure.cosmos.exceptions import CosmosHttpResponseError, CosmosResourceNotFoundError


@pytest.fixture
def control(server):
    """Calls a command."""

    def call(command, *, content="application/json", **arguments):
        request = urllib.request.Request(
            f"{server.endpoint}_emulator/{command}",
            json.dumps(arguments).encode(),
            {"Content-Type": content},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)["result"]
        except urllib.error.HTTPError as error:
            with error:
                raise ValueError(f"{error.code}: {json.load(error)['error']}") from None

    return call


@pytest.fixture
def there():
    return {"database": "shop", "container": "orders"}


class TestControl:
    def test_partitions_split_and_merge(self, control, container, there):
        assert [each["id"] for each in control("partitions", **there)] == ["0"]
        assert control("split", partition="0", **there) == ["1", "2"]
        assert control("merge", first="1", second="2", **there) == "3"
        assert [each["parents"] for each in control("partitions", **there)] == [["0", "1", "2"]]

    def test_a_replica_lags_and_transactions_are_lost(self, control, container, there):
        container.create_item({"id": "1", "pk": "a"})
        assert control("fault", action="lag", transactions=1, operation="ReadChangeFeed") is None
        (before,) = control("partitions", **there)
        control("lose", partition="0", transactions=1, **there)
        (after,) = control("partitions", **there)
        assert (before["lsn"], before["items"]) == (after["lsn"] + 1, 1)
        assert after["items"] == 0

    def test_time_passes_and_items_expire(self, shop, control, there):
        container = shop.create(default_ttl=30)
        container.create_item({"id": "1", "pk": "a"})
        control("advance", seconds=31)
        assert control("expire", **there) == 1
        with pytest.raises(CosmosResourceNotFoundError):
            container.read_item("1", "a")

    def test_changes_are_trimmed(self, container, control, there, follow):
        reader = follow(container, mode="AllVersionsAndDeletes", start_time="Now")
        reader.page()
        container.create_item({"id": "1", "pk": "a"})
        control("trim", **there)
        with pytest.raises(CosmosHttpResponseError, match="older than the retention"):
            reader.page()

    def test_the_mode_with_all_versions_is_switched(self, container, control):
        control("all_versions", enabled=False)
        with pytest.raises(CosmosHttpResponseError, match="must be enabled"):
            list(container.query_items_change_feed(mode="AllVersionsAndDeletes", start_time="Now"))

    def test_the_last_change_of_an_item_is_damaged(self, container, control, there, follow):
        reader = follow(container, mode="AllVersionsAndDeletes", start_time="Now")
        reader.page()
        for name in ("1", "1", "2"):
            container.upsert_item({"id": name, "pk": "a"})
        control("damage", item="1", **there)
        kinds = [each["metadata"]["operationType"] for each in reader.page()]
        assert kinds == ["create", "damaged", "create"]

    def test_faults_are_added_and_cleared(self, container, control):
        container.create_item({"id": "1", "pk": "a"})
        control("fault", action="fail", status=449, operation="ReadItem", times=None)
        with pytest.raises(CosmosHttpResponseError, match="RetryWith"):
            container.read_item("1", "a")
        control("clear_faults")
        assert container.read_item("1", "a")["id"] == "1"

    def test_requests_are_told(self, container, control):
        container.create_item({"id": "1", "pk": "a"})
        (made,) = control("requests", operation="CreateItem")
        assert (made["status"], made["path"]) == (201, "/dbs/shop/colls/orders/docs/")
        assert "authorization" not in made["headers"]

    @pytest.mark.parametrize(
        ("command", "arguments", "message"),
        [
            ("explode", {}, "404: there is no command 'explode'"),
            ("split", {"database": "shop"}, "400: split"),
            (
                "split",
                {"database": "shop", "container": "orders", "partition": "9"},
                "400: split: there is no",
            ),
            ("partitions", {"database": "none", "container": "orders"}, "404"),
            ("fault", {"action": "burn"}, "400: fault: there is no action 'burn'"),
            (
                "damage",
                {"database": "shop", "container": "orders", "item": "9"},
                "400: damage: there is no change of an item '9'",
            ),
            ("advance", {"seconds": -1}, "400: advance: a clock cannot go back"),
        ],
    )
    def test_what_is_wrong_is_named(self, container, control, command, arguments, message):
        with pytest.raises(ValueError, match=message):
            control(command, **arguments)

    def test_a_form_of_a_web_page_is_refused(self, control):
        with pytest.raises(ValueError, match="415"):
            control("advance", content="text/plain", seconds=1)
