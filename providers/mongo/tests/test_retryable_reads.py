"""Tests retryable reads, row by row of MongoDB's specification: RR-1 to RR-28.

Only the driver retries a read, and only once. The library adds no further retries.
"""

import itertools
import logging
import socket
import threading
import time
from pathlib import Path
from unittest import mock

import attrs
import gridfs
import pytest
from pymongo import MongoClient
from pymongo.errors import (
    AutoReconnect,
    ConfigurationError,
    NotPrimaryError,
    OperationFailure,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from pymongo.monitoring import CommandListener, ConnectionPoolListener, ServerListener
from pymongo.synchronous import pool as driver_pool

from multiclouddb_api import (
    ChangeFeedRequest,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
)
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mongo import MongoOptions

from .monitor import Commands, watched
from .old_server import OldServer
from .servers.failpoint import fail_command
from .servers.mongod import ReplicaSet

CODES = [6, 7, 89, 91, 189, 9001, 10107, 11600, 11602, 13435, 13436]
LATER_CODES = [134, 262]
FINAL = 8000  # a server error that is no reason to retry
OVERLOAD = {"errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"]}
SLOW_HEARTBEAT = {"heartbeatFrequencyMS": 60_000, "serverMonitoringMode": "stream"}
NAMES = itertools.count()


@pytest.fixture
def app():
    """Return an `appName` that only a client of this test uses, so that only its commands fail."""
    return f"reads-{next(NAMES)}"


@pytest.fixture
def here(one, database):
    """Return the address of a collection that contains one document."""
    one.client()[database]["c"].insert_one({"_id": 1})
    return ResourceAddress(database, "c")


@pytest.fixture
def plain(one, app):
    """Provide a client of the driver that does not use the library, and the commands that it sends."""
    commands = Commands()
    with MongoClient(one.uri(appName=app), event_listeners=[commands]) as client:
        client.admin.command("ping")
        commands.clear()
        yield client, commands


@pytest.fixture
def ours(one, app):
    """Provide the library's client, and the commands that it sends."""
    with watched(one.uri(appName=app)) as both:
        yield both


def read(client, address, start=None, scope=None, options=None, seconds=20):
    asked = {"scope": scope} if scope else {}
    request = ChangeFeedRequest(address, start or Now(), provider_options=options, **asked)
    return client.read_changes(request, OperationOptions(timeout_seconds=seconds))


FINDS = {
    "find": (["find"], lambda on: list(on.find())),
    "find one": (["find"], lambda on: on.find_one()),
    "find raw": (["find"], lambda on: list(on.find_raw_batches())),
    "gridfs find": (["find"], lambda on: list(gridfs.GridFSBucket(on.database).find({}))),
    "aggregate": (["aggregate"], lambda on: list(on.aggregate([{"$match": {}}]))),
    "aggregate raw": (["aggregate"], lambda on: list(on.aggregate_raw_batches([{"$match": {}}]))),
    "database aggregate": (["aggregate"], lambda on: list(on.database.aggregate([{"$documents": [{}]}]))),
    "distinct": (["distinct"], lambda on: on.distinct("_id")),
    "count documents": (["aggregate"], lambda on: on.count_documents({})),
    "estimated document count": (["count"], lambda on: on.estimated_document_count()),
}
LISTS = {
    "databases": (["listDatabases"], lambda on: list(on.database.client.list_databases())),
    "database names": (["listDatabases"], lambda on: on.database.client.list_database_names()),
    "collections": (["listCollections"], lambda on: list(on.database.list_collections())),
    "collection names": (["listCollections"], lambda on: on.database.list_collection_names()),
    "indexes": (["listIndexes"], lambda on: list(on.list_indexes())),
    "index information": (["listIndexes"], lambda on: on.index_information()),
}
WATCHES = {
    "collection": lambda on: on.watch(),
    "database": lambda on: on.database.watch(),
    "client": lambda on: on.database.client.watch(),
}


class TestErrors:
    """Tests the errors after which a read is retried."""

    def test_rr_01_a_lost_connection_at_the_start_of_a_feed(self, one, app, here, ours):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, closeConnection=True):
            assert read(client, here).events == ()
        assert commands.tries()[:2] == ["failed", "succeeded"]

    def test_rr_01_a_lost_connection_of_a_find(self, one, app, here, plain):
        client, commands = plain
        with fail_command(one, commands=["find"], app_name=app, closeConnection=True):
            assert client[here.database]["c"].find_one() == {"_id": 1}
        assert commands.ends("find") == ["failed", "succeeded"]

    @pytest.mark.parametrize("code", CODES)
    def test_rr_02_each_code_of_the_specification(self, one, app, here, ours, code):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, errorCode=code):
            assert read(client, here).events == ()
        assert commands.tries()[:2] == ["failed", "succeeded"]

    @pytest.mark.parametrize("code", LATER_CODES)
    def test_rr_02_codes_of_a_later_edition(self, one, app, here, plain, code):
        client, commands = plain
        with fail_command(one, commands=["find"], app_name=app, errorCode=code):
            client[here.database]["c"].find_one()
        assert commands.ends("find") == ["failed", "succeeded"]

    def test_rr_03_a_pool_that_another_thread_cleared(self, one, app, here):
        """A second thread that waits for a connection can read as soon as a connection exists again."""
        assert any(cleared_under_a_waiter(one, app, here) for _ in range(8))


def cleared_under_a_waiter(server, app, here):
    """Two threads share one connection, which a failure of the first thread closes before the second uses it.

    Both reads succeed. Return whether the second thread found that the pool was cleared.
    """
    commands, pool = Commands(), Pool()
    with MongoClient(server.uri(appName=app, maxPoolSize=1), event_listeners=[commands, pool]) as client:
        client.admin.command("ping")
        found = []
        readers = [
            threading.Thread(target=lambda: found.append(client[here.database]["c"].find_one()))
            for _ in range(2)
        ]
        slowly = {"blockConnection": True, "blockTimeMS": 300}
        with fail_command(server, commands=["find"], app_name=app, errorCode=91, **slowly):
            for count, reader in enumerate(readers, 2):  # the first connection was used by the ping
                reader.start()
                pool.wait_for("checkout started", count)
            for reader in readers:
                reader.join()
    assert found == [{"_id": 1}] * 2
    assert commands.ends("find") == ["failed", "succeeded", "succeeded"]
    assert pool.names("cleared") == ["cleared"]
    return pool.names("checkout failed") == ["checkout failed"]


class Pool(ConnectionPoolListener):
    """Counts the events of a client's connections."""

    def __init__(self):
        self._log = []
        self._more = threading.Condition()

    def _note(self, name):
        with self._more:
            self._log.append(name)
            self._more.notify_all()

    def names(self, *only):
        with self._more:
            return [name for name in self._log if name in only]

    def wait_for(self, name, count):
        with self._more:
            assert self._more.wait_for(lambda: self._log.count(name) >= count, 20)

    def pool_cleared(self, event):
        self._note("cleared")

    def connection_check_out_started(self, event):
        self._note("checkout started")

    def connection_check_out_failed(self, event):
        self._note("checkout failed")

    def _ignore(self, event):
        pass

    pool_created = pool_ready = pool_closed = connection_created = connection_ready = _ignore
    connection_closed = connection_checked_out = connection_checked_in = _ignore


@pytest.fixture(scope="class")
def guarded(tmp_path_factory):
    """Provide a set that requires a password."""
    with ReplicaSet(tmp_path_factory.mktemp("guarded"), auth=True) as server:
        server.client().shop.orders.insert_one({"_id": 1})
        yield server


class TestHandshake:
    """Tests connections that fail while they are opened, before any command could be retried."""

    @pytest.mark.parametrize(
        "failure", [{"closeConnection": True}, {"errorCode": 91}], ids=["lost connection", "code 91"]
    )
    def test_rr_04_a_failing_login_of_a_new_connection(self, guarded, app, failure):
        """The failed `ping` closes the only connection, so the read opens a new connection and logs in."""
        address = guarded.uri(appName=app)
        with watched(address) as (client, commands):
            refused = {"commands": ["ping", "saslContinue"], "app_name": app, "times": 2, **failure}
            with fail_command(guarded, **refused):
                with pytest.raises(MulticloudDbError):
                    client.run_command("admin", {"ping": 1})
                assert read(client, ResourceAddress("shop", "orders")).events == ()
            assert set(commands.tries()) == {"succeeded"}

    def test_rr_04_once_only(self, guarded, app):
        address = guarded.uri(appName=app)
        with watched(address) as (client, _):
            refused = {"commands": ["ping", "saslContinue"], "app_name": app, "times": None}
            with fail_command(guarded, closeConnection=True, **refused):
                with pytest.raises(MulticloudDbError):
                    client.run_command("admin", {"ping": 1})
                with pytest.raises(MulticloudDbError) as caught:
                    read(client, ResourceAddress("shop", "orders"))
            assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE


class TestSwitch:
    """Tests the option `retryReads`."""

    def test_rr_05_on_unless_switched_off(self, one, app, here):
        for uri in (one.uri(appName=app), one.uri(appName=app, retryReads=True)):
            with (
                watched(uri) as (client, commands),
                fail_command(one, commands=["aggregate"], app_name=app, errorCode=6),
            ):
                read(client, here)
                assert commands.tries()[:2] == ["failed", "succeeded"]

    @pytest.mark.parametrize("kind", [ChangeFeedRequest, OperationOptions, MongoOptions])
    def test_rr_06_no_single_read_has_it(self, kind):
        assert [field.name for field in attrs.fields(kind) if "retr" in field.name.lower()] == []

    @pytest.mark.parametrize("option", ["retry_reads", "retryReads"])
    def test_rr_06_no_command_has_it(self, ours, option):
        client, _ = ours
        with pytest.raises(MulticloudDbError) as caught:
            client.run_command("admin", {"ping": 1}, **{option: False})
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    def test_rr_07_its_name_in_the_connection_string(self, one, app, here):
        with (
            watched(one.uri(appName=app, retryReads=False)) as (client, commands),
            fail_command(one, commands=["aggregate"], app_name=app, errorCode=6),
            pytest.raises(MulticloudDbError),
        ):
            read(client, here)
        assert commands.tries() == ["failed"]

    def test_rr_08_a_server_that_is_too_old_is_not_asked(self):
        with OldServer(5) as server, watched(server.uri) as (client, commands):
            with pytest.raises(MulticloudDbError) as caught:
                read(client, ResourceAddress("shop", "orders"))
            assert isinstance(caught.value.__cause__, ConfigurationError)
            assert server.greeted
        assert commands.names() == []


class TestOperations:
    """Tests which reads are retried, and which are not."""

    @pytest.mark.parametrize("name", FINDS)
    def test_rr_09_reads_of_a_collection(self, one, app, here, plain, name):
        client, commands = plain
        names, do = FINDS[name]
        with fail_command(one, commands=names, app_name=app, errorCode=6):
            do(client[here.database]["c"])
        assert commands.ends(*names) == ["failed", "succeeded"]

    def test_rr_09_the_chunks_of_a_file(self, one, app, database, plain):
        client, commands = plain
        name = gridfs.GridFSBucket(one.client()[database]).upload_from_stream("file", b"x" * 10)
        with (
            gridfs.GridFSBucket(client[database]).open_download_stream(name) as file,
            fail_command(one, commands=["find"], app_name=app, errorCode=6),
        ):
            commands.clear()
            assert file.read() == b"x" * 10
        assert commands.ends("find")[:2] == ["failed", "succeeded"]

    @pytest.mark.parametrize("stage", [{"$out": "other"}, {"$merge": "other"}], ids=["out", "merge"])
    def test_rr_09_not_an_aggregate_that_writes(self, one, app, here, plain, stage):
        client, commands = plain
        with (
            fail_command(one, commands=["aggregate"], app_name=app, errorCode=6),
            pytest.raises(OperationFailure),
        ):
            client[here.database]["c"].aggregate([stage])
        assert commands.ends("aggregate") == ["failed"]

    @pytest.mark.parametrize("scope", [None, EntireDatabase(), EntireCluster()], ids=lambda scope: str(scope))
    def test_rr_10_a_feed_of_each_scope(self, one, app, here, ours, scope):
        client, commands = ours
        address = {
            type(None): here,
            EntireDatabase: ResourceAddress(here.database),
            EntireCluster: ResourceAddress(),
        }[type(scope)]
        with fail_command(one, commands=["aggregate"], app_name=app, closeConnection=True):
            read(client, address, scope=scope)
        first, second, *_ = commands.streams()
        assert first == second
        assert ("allChangesForCluster" in first) is isinstance(scope, EntireCluster)

    @pytest.mark.parametrize("name", WATCHES)
    def test_rr_10_a_watch_of_each_kind(self, one, app, here, plain, name):
        client, commands = plain
        with fail_command(one, commands=["aggregate"], app_name=app, errorCode=6):
            WATCHES[name](client[here.database]["c"]).close()
        assert commands.ends("aggregate") == ["failed", "succeeded"]

    @pytest.mark.parametrize("name", LISTS)
    def test_rr_11_lists(self, one, app, here, plain, name):
        client, commands = plain
        names, do = LISTS[name]
        with fail_command(one, commands=names, app_name=app, errorCode=6):
            do(client[here.database]["c"])
        assert commands.ends(*names) == ["failed", "succeeded"]

    def test_rr_11_the_list_that_a_feed_looks_its_collection_up_in(self, one, app, here, ours):
        client, commands = ours
        with fail_command(one, commands=["listCollections"], app_name=app, errorCode=6):
            read(client, here)
        assert commands.ends("listCollections")[:2] == ["failed", "succeeded"]

    def test_rr_13_not_mapreduce(self, one, app, here, ours):
        client, commands = ours
        counting = {
            "mapReduce": "c",
            "map": "function() { emit(1, 1); }",
            "reduce": "function(key, all) { return all.length; }",
            "out": {"inline": 1},
        }
        with (
            fail_command(one, commands=["mapReduce"], app_name=app, errorCode=6),
            pytest.raises(MulticloudDbError),
        ):
            client.run_command(here.database, counting)
        assert commands.ends("mapReduce") == ["failed"]

    @pytest.mark.parametrize(
        "failure", [{"closeConnection": True}, {"errorCode": 6}], ids=["lost connection", "code 6"]
    )
    def test_rr_14_not_a_getmore(self, one, app, database, plain, failure):
        one.client()[database]["c"].insert_many({"_id": number} for number in range(5))
        client, commands = plain
        with (
            fail_command(one, commands=["getMore"], app_name=app, **failure),
            client[database]["c"].find(batch_size=2) as cursor,
            pytest.raises((AutoReconnect, OperationFailure)),
        ):
            list(cursor)
        assert commands.ends("getMore") == ["failed"]

    def test_rr_14_a_feed_opens_another_cursor_instead(self, one, app, here, ours):
        client, commands = ours
        first = read(client, here)
        commands.clear()
        with fail_command(one, commands=["getMore"], app_name=app, closeConnection=True):
            one.client()[here.database]["c"].insert_one({"_id": 2})
            token, events = first.continuation_token, []
            while not events:
                page = read(client, here, FromContinuationToken(token))
                token, events = page.continuation_token, page.events
        assert [event.key.components for event in events] == [{"_id": 2}]
        asked = commands.bodies("getMore")
        assert commands.tries() == ["succeeded"]
        assert all(body["getMore"] != asked[0]["getMore"] for body in asked[1:])

    @pytest.mark.parametrize("name", ["ping", "find", "aggregate", "count", "distinct"])
    def test_rr_15_not_a_command(self, one, app, here, ours, name):
        client, commands = ours
        command = {
            "ping": {"ping": 1},
            "find": {"find": "c"},
            "aggregate": {"aggregate": "c", "pipeline": [], "cursor": {}},
            "count": {"count": "c"},
            "distinct": {"distinct": "c", "key": "_id"},
        }[name]
        with (
            fail_command(one, commands=[name], app_name=app, errorCode=91),
            pytest.raises(MulticloudDbError) as caught,
        ):
            client.run_command(here.database, command)
        assert caught.value.detail.native_code == "91"
        assert commands.ends(name) == ["failed"]

    def test_rr_15_not_a_command_with_a_cursor(self, one, app, here, ours):
        client, commands = ours
        with (
            fail_command(one, commands=["find"], app_name=app, closeConnection=True),
            pytest.raises(MulticloudDbError),
        ):
            list(client.run_cursor_command(here.database, {"find": "c"}))
        assert commands.ends("find") == ["failed"]

    def test_rr_15_but_an_overload_is_retried_by_the_driver(self, one, app, ours):
        client, commands = ours
        with fail_command(one, commands=["ping"], app_name=app, **OVERLOAD):
            client.run_command("admin", {"ping": 1})
        assert commands.ends("ping") == ["failed", "succeeded"]


class TestTries:
    """Tests how a read is retried, and which error the caller gets."""

    def test_rr_16_no_server_for_the_first_try(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # a port on which nothing listens
            uri = f"mongodb://127.0.0.1:{taken.getsockname()[1]}/?replicaSet=rs&serverSelectionTimeoutMS=200"
            with watched(uri) as (client, commands), pytest.raises(MulticloudDbError) as caught:
                read(client, ResourceAddress("shop", "orders"))
        assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
        assert isinstance(caught.value.__cause__, ServerSelectionTimeoutError)
        assert commands.names() == []

    def test_rr_17_one_try_when_switched_off(self, one, app, here):
        with (
            watched(one.uri(appName=app, retryReads=False)) as (client, commands),
            fail_command(one, commands=["aggregate"], app_name=app, closeConnection=True),
        ):
            with pytest.raises(MulticloudDbError) as caught:
                read(client, here)
            assert caught.value.detail.retryable
            assert commands.tries() == ["failed"]

    def test_rr_17_one_try_where_the_application_switched_it_off(self, one, app, here):
        commands = Commands()
        with (
            MongoClient(one.uri(appName=app), retryReads=False, event_listeners=[commands]) as native,
            watched(one.uri(), native_client=native) as (client, _),
        ):
            with (
                fail_command(one, commands=["aggregate"], app_name=app, errorCode=6),
                pytest.raises(MulticloudDbError),
            ):
                read(client, here)
            assert commands.tries() == ["failed"]

    def test_rr_17_one_try_in_a_transaction(self, one, app, here, plain):
        client, commands = plain
        with (
            fail_command(one, commands=["find"], app_name=app, errorCode=6),
            pytest.raises(OperationFailure) as caught,
            client.start_session() as session,
            session.start_transaction(),
        ):
            client[here.database]["c"].find_one(session=session)
        assert caught.value.code == 6
        assert caught.value.has_error_label("TransientTransactionError")
        assert commands.ends("find") == ["failed"]

    def test_rr_18_no_retry_of_another_error(self, one, app, here, ours):
        client, commands = ours
        with (
            fail_command(one, commands=["aggregate"], app_name=app, errorCode=FINAL),
            pytest.raises(MulticloudDbError) as caught,
        ):
            read(client, here)
        assert caught.value.detail.native_code == str(FINAL)
        assert commands.tries() == ["failed"]

    def test_rr_19_what_is_known_of_the_servers_is_corrected(self, one, app, here):
        states = States()
        with MongoClient(one.uri(appName=app), event_listeners=[states]) as client:
            client.admin.command("ping")
            states.clear()
            with fail_command(one, commands=["find"], app_name=app, errorCode=91):
                client[here.database]["c"].find_one()
        *_, gone, back = [change.new_description for change in states.changes]
        assert gone.server_type_name == "Unknown"
        assert isinstance(gone.error, NotPrimaryError)
        assert back.server_type_name == "RSPrimary"

    def test_rr_20_no_server_for_the_retry(self, one, app, here):
        """There is no server for the retry: the driver's next check of the server comes too late."""
        uri = one.uri(appName=app, serverSelectionTimeoutMS=1000, **SLOW_HEARTBEAT)
        commands = Commands()
        with MongoClient(uri, event_listeners=[commands]) as client:
            wait_until(lambda: found(client, here))
            commands.clear()
            with (
                fail_command(one, commands=["find"], app_name=app, errorCode=91),
                pytest.raises(NotPrimaryError) as caught,
            ):
                client[here.database]["c"].find_one()
        assert caught.value.details["code"] == 91
        assert commands.ends("find") == ["failed"]

    def test_rr_21_the_same_is_asked_again(self, one, app, here, ours):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, closeConnection=True):
            read(client, here)
        first, second, *_ = (
            {name: value for name, value in event.command.items() if name not in ("lsid", "$clusterTime")}
            for event in commands.opening()
        )
        assert first == second

    def test_rr_22_the_second_error_of_the_server_is_raised(self, one, app, here):
        with watched(one.uri(appName=app), Next(one, app)) as (client, commands):
            with (
                fail_command(one, commands=["aggregate"], app_name=app, errorCode=6),
                pytest.raises(MulticloudDbError) as caught,
            ):
                read(client, here)
            assert caught.value.detail.native_code == str(FINAL)
        assert commands.tries() == ["failed", "failed"]

    def test_rr_22_the_driver_raises_its_own_second_error_too(self, one, app, here, plain):
        """A read fails, and its retry gets no connection; the driver raises the error of the retry.

        If this test fails, PyMongo now behaves differently, and the row in the table is wrong.
        """
        client, commands = plain
        checkout = driver_pool.Pool.checkout

        def in_time(pool, *given, **named):
            if commands.ends("find"):
                raise WaitQueueTimeoutError("played: no connection in time")
            return checkout(pool, *given, **named)

        with (
            fail_command(one, commands=["find"], app_name=app, errorCode=6),
            mock.patch.object(driver_pool.Pool, "checkout", in_time),
            pytest.raises(WaitQueueTimeoutError),
        ):
            client[here.database]["c"].find_one()
        assert commands.ends("find") == ["failed"]

    def test_rr_23_another_message_with_a_newer_time(self, one, app, here, ours):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, errorCode=6):
            read(client, here)
        first, second, *_ = commands.opening()
        assert first.request_id != second.request_id
        assert first.command["$clusterTime"]["clusterTime"] <= second.command["$clusterTime"]["clusterTime"]

    def test_rr_24_the_driver_logs_a_retry(self, one, app, here, ours, caplog):
        client, _ = ours
        with (
            caplog.at_level(logging.DEBUG, "pymongo.command"),
            fail_command(one, commands=["aggregate"], app_name=app, errorCode=6),
        ):
            read(client, here)
        said = [record.getMessage() for record in caplog.records]
        assert len([message for message in said if "Retrying read attempt number" in message]) == 1

    def test_rr_25_each_try_is_reported_as_started_and_ended(self, one, app, here, ours):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, closeConnection=True):
            read(client, here)
        first, second, *_ = (event.request_id for event in commands.opening())
        assert [event.request_id for event in commands.events("failed")] == [first]
        assert second in [event.request_id for event in commands.events("succeeded")]
        ended = commands.events("succeeded") + commands.events("failed")
        assert sorted(event.request_id for event in ended) == sorted(
            event.request_id for event in commands.sent()
        )

    @pytest.mark.parametrize(
        "failure", [{"closeConnection": True}, {"errorCode": 6}], ids=["lost connection", "code 6"]
    )
    def test_rr_26_our_engine_adds_no_retry(self, one, app, here, ours, failure):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, times=None, **failure):
            for calls in (1, 2, 3):
                with pytest.raises(MulticloudDbError) as caught:
                    read(client, here)
                assert caught.value.detail.retryable
                assert commands.tries() == ["failed"] * 2 * calls
        assert read(client, here).events == ()

    def test_rr_26_nor_where_the_application_brought_its_client(self, one, app, here, plain):
        native, commands = plain
        with watched(one.uri(), native_client=native) as (client, _):
            with (
                fail_command(one, commands=["aggregate"], app_name=app, times=None, errorCode=6),
                pytest.raises(MulticloudDbError),
            ):
                read(client, here)
            assert commands.tries() == ["failed", "failed"]

    def test_rr_26_the_release_notes_warn_of_retry_loops(self):
        notes = (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")
        assert "(`retryReads`), and we do not retry it: reduce the tries of your own retry loops" in " ".join(
            notes.split()
        )

    def test_rr_27_with_a_timeout_there_are_more(self, one, app, here):
        with (
            watched(one.uri(appName=app, timeoutMS=10_000)) as (client, commands),
            fail_command(one, commands=["aggregate"], app_name=app, times=4, errorCode=6),
        ):
            assert read(client, here).events == ()
            assert commands.tries()[:5] == ["failed"] * 4 + ["succeeded"]

    def test_rr_28_an_overload_is_retried_twice_with_pauses(self, one, app, here, ours):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, times=None, **OVERLOAD):
            begin = time.monotonic()
            with pytest.raises(MulticloudDbError) as caught:
                read(client, here)
            assert time.monotonic() - begin < 10
        assert caught.value.detail.retryable
        assert commands.tries() == ["failed"] * 3

    def test_rr_28_a_getmore_too(self, one, app, here, ours):
        """The cursor stays the same, because an overloaded server refuses the command without running it."""
        client, commands = ours
        token = read(client, here).continuation_token
        commands.clear()
        with fail_command(one, commands=["getMore"], app_name=app, times=2, **OVERLOAD):
            assert read(client, here, FromContinuationToken(token)).events == ()
        assert commands.ends("getMore")[:3] == ["failed", "failed", "succeeded"]
        assert commands.tries() == []

    def test_rr_28_an_overload_that_passes_is_not_seen(self, one, app, here, ours):
        client, commands = ours
        with fail_command(one, commands=["aggregate"], app_name=app, times=2, **OVERLOAD):
            assert read(client, here).events == ()
        assert commands.tries()[:3] == ["failed", "failed", "succeeded"]


def found(client, address):
    try:
        return client[address.database][address.collection].find_one()
    except ServerSelectionTimeoutError:  # a second is short on a busy machine
        return None


class States(ServerListener):
    """Records the client's view of its servers each time the view changes."""

    def __init__(self):
        self.changes = []

    def clear(self):
        self.changes.clear()

    def opened(self, event):
        pass

    def description_changed(self, event):
        self.changes.append(event)

    def closed(self, event):
        pass


class Next(CommandListener):
    """After a command has failed, makes the next command fail in another way."""

    def __init__(self, server, app):
        self._server, self._app = server, app

    def started(self, event):
        pass

    def succeeded(self, event):
        pass

    def failed(self, event):
        node = self._server.direct(self._server.wait_primary())
        node.admin.command(
            {
                "configureFailPoint": "failCommand",
                "mode": {"times": 1},
                "data": {"failCommands": [event.command_name], "appName": self._app, "errorCode": FINAL},
            }
        )
