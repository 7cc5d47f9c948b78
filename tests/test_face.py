"""Tests what a person guesses: the names, the shortcuts and the refusals of the public API."""

import copy
import json
import pickle
import sys
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum

import pytest

import multiclouddb as api
import multiclouddb_api
from multiclouddb_embedded import EmbeddedStore

from .refusals import refused

ORDERS = api.ResourceAddress("main", "orders")
PUBLIC = [getattr(api, name) for name in api.__all__]
ENUMS = [each for each in PUBLIC if isinstance(each, type) and issubclass(each, Enum)]


@pytest.fixture
def store(tmp_path):
    with EmbeddedStore(tmp_path / "store.db") as made:
        made.create_collection("orders", partitions=2)
        for number in range(5):
            made.put("orders", f"o-{number}", {"total": number})
        yield made


@pytest.fixture
def url(store, tmp_path):
    return f"embedded://{tmp_path}/store.db"


@pytest.fixture
def client(url):
    with api.connect(url) as made:
        yield made


@pytest.fixture
def request_(client):
    return api.ChangeFeedRequest("main/orders", api.Beginning())


class TestNames:
    def test_the_package_gives_the_same_objects(self):
        assert api.__all__ == multiclouddb_api.__all__
        for name in api.__all__:
            assert getattr(api, name) is getattr(multiclouddb_api, name)

    @pytest.mark.parametrize("kind", ENUMS, ids=lambda kind: kind.__name__)
    def test_an_enum_compares_with_its_text(self, kind):
        assert len(ENUMS) == 7
        for item in kind:
            assert item == item.value
            assert f"{item}" == item.value
            assert {item.value: 1}[item] == 1
            assert json.dumps(item) == json.dumps(item.value)


class TestEvents:
    def event(self, document):
        moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
        key = api.MulticloudDbKey({"id": "o-1", "n": Decimal("1.5")})
        return api.ChangeEvent(
            "e-1", key, api.ChangeType.DELETE, moment, document, None, "7", False, False, ORDERS, "p"
        )

    def test_a_key_is_read_like_a_mapping(self):
        key = self.event(None).key
        assert (key["id"], len(key), list(key), dict(key)) == ("o-1", 2, ["id", "n"], key.components)
        assert "id" in key
        assert "x" not in key
        with pytest.raises(KeyError, match="'x' is no component of this key, which has 'id', 'n'") as caught:
            key["x"]
        assert "o-1" not in str(caught.value)

    def test_to_dict_is_ready_for_json(self):
        event = self.event({"at": datetime(2026, 1, 1, tzinfo=UTC), "raw": b"hi", "many": {1}})
        assert json.loads(json.dumps(event.to_dict())) == {
            "type": "DELETE", "event_id": "e-1", "key": {"id": "o-1", "n": 1.5},
            "timestamp": "2026-01-31T12:00:00Z", "old_item_state": None, "order_key": "7",
            "new_item_state": {"at": "2026-01-01T00:00:00Z", "raw": "aGk=", "many": [1]},
            "by_expiry": False, "backfilled": False, "address": "main/orders", "partition_id": "p",
        }  # fmt: skip


class TestTables:
    def test_a_page_becomes_a_table(self, client, request_):
        page = client.read_changes(request_)
        batch = page.to_arrow()
        assert batch.schema.equals(multiclouddb_api.arrow.EVENT_SCHEMA)
        assert batch.column("event_id").to_pylist() == [event.event_id for event in page.events]
        frame = page.to_pandas()
        assert list(frame.columns) == batch.schema.names
        assert list(frame["type"]) == ["CREATE"] * len(page.events)

    def test_a_state_that_is_missing_is_null(self):
        key, at = api.MulticloudDbKey({"id": "o-1"}), datetime(2026, 1, 31, tzinfo=UTC)
        deleted = (api.ChangeType.DELETE, at, None, None)
        event = api.ChangeEvent("e-1", key, *deleted, "7", None, False, ORDERS, "p")
        batch = api.ChangeFeedPage((event,), "token").to_arrow()
        assert [batch.column(name).null_count for name in ("new_item_state", "old_item_state")] == [1, 1]

    def test_polars_gets_the_batch(self, client, request_):
        page = client.read_changes(request_)
        frame = page.to_polars()
        assert frame.columns == page.to_arrow().schema.names
        assert frame["type"].to_list() == ["CREATE"] * len(page.events)

    @pytest.mark.parametrize(
        ("method", "module", "extra"),
        [
            ("to_arrow", "multiclouddb_api.arrow", "arrow"),
            ("to_pandas", "pandas", "pandas"),
            ("to_polars", "polars", "polars"),
        ],
    )
    def test_a_missing_package_names_the_extra(self, client, request_, monkeypatch, method, module, extra):
        monkeypatch.setitem(sys.modules, module, None)
        assert f'"multiclouddb[{extra}]"' in refused(getattr(client.read_changes(request_), method))

    def test_a_notebook_shows_tables(self, client, store, request_):
        store.put("orders", "<b>", {"total": 1})
        page, listing = client.read_changes(request_), client.list_physical_partitions("orders")
        plan, capabilities = client.plan_partitions(request_), client.capabilities()
        for shown, rows in ((page, 6), (listing, 2), (plan, 2), (capabilities, len(list(capabilities)))):
            text = shown._repr_html_()
            assert text.count("<tr>") == rows + 1
            assert "<b>" not in text
            assert not any(token in text for _, token in plan)


class TestRequests:
    def test_after_continues(self, client, request_):
        page = client.read_changes(request_)
        for position in (page, page.continuation_token, page.continuation_token + "\r\n"):
            after = request_.after(position)
            token = api.FromContinuationToken(page.continuation_token)
            assert after == api.ChangeFeedRequest(ORDERS, token)
            assert not set(client.read_changes(after).events) & set(page.events)

    @pytest.mark.parametrize(
        ("field", "value", "advice"),
        [
            ("start_position", "ey…", "request.after(token) or FromContinuationToken(token)"),
            ("start_position", api.ChangeFeedPage((), "t"), "request.after(token)"),
            ("start_position", "now", "write Now()"),
            ("start_position", api.Now, "write Now()"),
            ("start_position", datetime(2026, 1, 1, tzinfo=UTC), "write AtTime(datetime)"),
            ("start_position", None, "write Beginning(), Now()"),
            ("scope", "orders", "leave the scope out"),
            ("on_expired", "skip", "write SkipToOldest()"),
            ("on_expired", None, "Fail(), SkipToOldest() or Resnapshot()"),
            ("max_page_size", "7", "pass an int"),
        ],
    )
    def test_a_refusal_says_what_to_write(self, field, value, advice):
        fields = {"address": ORDERS, "start_position": api.Now(), field: value}
        message = refused(api.ChangeFeedRequest, **fields)
        assert message.startswith(f"ChangeFeedRequest.{field}: ")
        assert advice in message


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("shop/orders", api.ResourceAddress("shop", "orders")),
            ("orders", api.ResourceAddress(None, "orders")),
            ("/orders", api.ResourceAddress(collection="orders")),
            ("shop/a/b", api.ResourceAddress("shop", "a/b")),
        ],
    )
    def test_text_is_an_address(self, text, address):
        assert api.ResourceAddress.parse(text) == address
        assert api.ChangeFeedRequest(text, api.Now()).address == address

    def test_wider_scopes_keep_the_class(self):
        address = api.ResourceAddress(database="shop")
        assert (address.collection, str(address), str(api.ResourceAddress())) == (None, "shop", "")
        assert api.ChangeFeedRequest(address, api.Now(), api.EntireDatabase()).address is address
        assert pickle.loads(pickle.dumps(address)) == address

    @pytest.mark.parametrize("names", [["orders"], ["a", "b", "c"], [None]])
    def test_a_lone_name_says_not_what_it_names(self, names):
        assert "ResourceAddress.parse" in refused(api.ResourceAddress, *names)

    @pytest.mark.parametrize("text", ["", "shop/", " ", None, 7])
    def test_text_without_a_collection_is_refused(self, text):
        assert "address" in refused(api.ResourceAddress.parse, text)

    def test_a_client_takes_text(self, client):
        assert client.list_physical_partitions("main/orders") == client.list_physical_partitions(ORDERS)


class TestClient:
    def test_collections(self, client, store):
        store.create_collection("customers")
        assert client.collections() == (api.ResourceAddress("main", "customers"), ORDERS)
        assert client.collections("main") == client.collections()

    def test_a_plan_says_what_is_a_segment(self, client):
        request = api.ChangeFeedRequest("orders", api.Snapshot(api.SnapshotOrder.INTERLEAVED, segments=3))
        plan = client.plan_partitions(request)
        assert [each.is_segment for each in plan] == [False, False, True, True, True]
        assert len(plan.segments) == 3
        for copied in (copy.copy(plan), pickle.loads(pickle.dumps(plan))):
            assert [each.is_segment for each in copied] == [each.is_segment for each in plan]
        rows = 0
        for each in plan:
            assert (each.partition_id, each.continuation_token) == each
            assert each.continuation_token not in repr(plan)
            scope, start = (
                api.PhysicalPartition(each.partition_id),
                api.FromContinuationToken(each.continuation_token),
            )
            with client.iterate_changes(
                api.ChangeFeedRequest("orders", start, scope), until_idle=True
            ) as events:
                rows += len(list(events))
        assert rows == 5

    def test_inspect(self, client, store, request_):
        token = client.read_changes(request_).continuation_token
        report = client.inspect(token + "\n")
        assert (report.address, report.scope) == (ORDERS, "collection")
        assert (report.resumes, report.error) == (True, None)
        assert report.changes_waiting is False
        listed = client.list_physical_partitions(ORDERS)
        assert {each.partition_id for each in report.partitions} == set(listed)
        assert {each.state for each in report.partitions} == {"active"}
        assert all(each.position for each in report.partitions)
        store.put("orders", "o-9", {})
        assert client.inspect(token).changes_waiting is True
        one = client.plan_partitions(request_)[0]
        store.split("orders", "p0")
        request = api.ChangeFeedRequest(ORDERS, api.Now(), api.PhysicalPartition(one.partition_id))
        retired = client.read_changes(request.after(one))
        while not retired.partition_retired:
            retired = client.read_changes(request.after(retired))
        report = client.inspect(retired.continuation_token)
        assert report.changes_waiting is None, "the children may have some"
        store.drop_collection("orders")
        gone = client.inspect(token)
        assert (gone.resumes, gone.error) == (False, api.ErrorCategory.NOT_FOUND)
        assert "orders" in gone.problem
        assert "damaged" in refused(client.inspect, "nonsense")


class TestFollow:
    def ids(self, url, **settings):
        with api.follow(url, "orders", until_idle=True, **settings) as events:
            return [event.key["id"] for event in events]

    def test_a_start_is_needed_until_the_file_exists(self, url, store, tmp_path):
        file = tmp_path / "orders.checkpoint"
        assert "start" in refused(api.follow, url, "orders")
        assert str(file) in refused(api.follow, url, "orders", checkpoint=file)
        assert len(self.ids(url, start=api.Beginning(), checkpoint=file)) == 5
        store.put("orders", "o-9", {})
        assert self.ids(url, checkpoint=file) == ["o-9"]
        assert self.ids(url, start=api.Beginning(), checkpoint=file) == []

    def test_now_is_when_the_block_is_entered(self, url, store, tmp_path):
        settings = {"start": api.Now(), "until_idle": True}
        for number, more in enumerate(({}, {"checkpoint": tmp_path / "orders.checkpoint"})):
            with api.follow(url, "orders", **settings, **more) as events:
                store.put("orders", f"new-{number}", {})
                assert [event.key["id"] for event in events] == [f"new-{number}"]
        file = tmp_path / "other.checkpoint"
        api.follow(url, "orders", checkpoint=file, **settings).__enter__()
        store.put("orders", "unread", {})  # and the process dies
        assert self.ids(url, start=api.Now(), checkpoint=file) == ["unread"]

    def test_a_block_that_cannot_begin_closes_its_client(self, url):
        events = api.follow(url, "absent", start=api.Now())
        with pytest.raises(api.MulticloudDbError, match="absent"):
            events.__enter__()
        assert "closed" in refused(events.client.read_changes, events.request)

    def test_without_a_file_nothing_is_stored(self, url, tmp_path):
        before = set(tmp_path.iterdir())
        assert len(self.ids(url, start=api.Beginning())) == 5
        assert {each.suffix for each in set(tmp_path.iterdir()) - before} <= {".db-shm", ".db-wal"}

    def test_next_goes_on_and_a_crash_repeats(self, url, tmp_path):
        file = tmp_path / "orders.checkpoint"
        events = api.follow(url, "orders", start=api.Beginning(), checkpoint=file)
        seen = [next(events), next(events), next(iter(events))]
        assert len({event.event_id for event in seen}) == 3
        events.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
        with api.follow(url, "orders", start=api.Beginning(), checkpoint=file, until_idle=True) as events:
            again = [next(events), *events]
        assert seen[-1] in again
        assert len({event.event_id for event in seen + again}) == 5

    def stopped_in_a_loop(self, events):
        for _ in events:
            events.stop()

    def test_it_closes_its_client(self, url):
        for leave in (list, lambda events: events.close(), self.stopped_in_a_loop):
            events = api.follow(url, "orders", start=api.Beginning(), until_idle=True)
            leave(events)
            assert "closed" in refused(events.client.read_changes, events.request)

    def test_next_in_a_loop_goes_on_after_the_event_of_the_loop(self, client, request_):
        changes, seen = client.iterate_changes(request_, until_idle=True), []
        for event in changes:
            seen += [event.event_id, *(each.event_id for each in [next(changes, None)] if each is not None)]
        assert len(seen) == len(set(seen)) == 5
        changes = client.iterate_changes(request_, until_idle=True)
        for _ in changes:
            break
        again = {event.event_id for event in (next(changes), *changes)}
        assert again == set(seen), "a page that is not done is delivered again"

    def test_a_file_that_cannot_be_written_is_refused_before_a_read(self, url, tmp_path):
        blocked = tmp_path / "blocked"
        blocked.write_text("")
        with pytest.raises(api.MulticloudDbError) as caught:
            api.follow(url, "orders", start=api.Now(), checkpoint=blocked / "orders.checkpoint")
        assert "orders.checkpoint" in caught.value.message

    def test_an_unknown_setting_is_refused_with_the_one_that_is_meant(self, url, client, request_):
        text = refused(api.follow, url, "orders", starting=api.Now())
        assert "follow: has no setting 'starting'; did you mean start?" in text
        text = refused(client.iterate_changes, request_, until_idel=True)
        assert "iterate_changes: has no setting 'until_idel'; did you mean until_idle?" in text
        assert "max_outage_seconds" in refused(client.iterate_changes, request_, xyz=1)

    def test_a_first_read_that_fails_is_told_at_once_or_waited_for(self, url, monkeypatch):
        """As on the command line, where `--wait` waits."""
        calls, read = [], api.MulticloudDbClient.read_changes

        def late(client, request, options=None):
            calls.append(request)
            if len(calls) < 3:
                detail = api.ErrorDetail(api.ErrorCategory.TRANSIENT_FAILURE, retryable=True)
                raise api.MulticloudDbError("connection refused", detail)
            return read(client, request, options)

        monkeypatch.setattr(api.MulticloudDbClient, "read_changes", late)
        with pytest.raises(api.MulticloudDbError, match="connection refused"):
            self.ids(url, start=api.Beginning())
        assert len(calls) == 1
        assert len(self.ids(url, start=api.Beginning(), max_start_seconds=60)) == 5

    def test_a_store_and_a_file_are_refused(self, url, tmp_path):
        store = api.FileCheckpointStore(tmp_path)
        settings = {"checkpoint": tmp_path / "a", "checkpoint_store": store, "checkpoint_name": "a"}
        assert "checkpoint" in refused(
            api.follow, url, "orders", start=api.AtTime(datetime.now(UTC)), **settings
        )


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://x.documents.azure.com:443/", "cosmos://x.documents.azure.com"),
        ("https://hunter2@x.documents.azure.com:443/", "write cosmos://x.documents.azure.com"),
        ("https://x.documents.azure.com", "cosmos://x.documents.azure.com"),
        ("http://localhost:8000", "dynamo://REGION?endpoint_url="),
    ],
)
def test_a_web_address_says_which_url_to_write(url, advice):
    assert advice in refused(api.connect, url)
