"""Tests rows RC-18 to RC-29 of MongoDB's "Run Command" specification, which concern cursors.

RC-22, a connection that is pinned to a load balancer, has no test, because the test server cannot act as a
load balancer.
"""

import copy
import gc
import threading
import time

import pytest
from bson import Decimal128, ObjectId
from bson.codec_options import TypeDecoder, TypeRegistry
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.read_preferences import Nearest

from multiclouddb_api import ErrorCategory, MulticloudDbError, connect
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_mongo.commands import Commands, RunCommandCursor

from .monitor import patient
from .native import hanging, native, refused
from .servers.failpoint import fail_command

INVALID = ErrorCategory.INVALID_REQUEST
TRANSIENT = ErrorCategory.TRANSIENT_FAILURE
# Long enough for a slow machine, but much shorter than a call without a limit.
SOON = 8.0
NOT_FOUND = 43  # the server has no such cursor
TAILABLE = {"find": "capped", "tailable": True}
AWAITING = {**TAILABLE, "awaitData": True}


@pytest.fixture
def db(one, database):
    """Provide a database with a collection of ten documents, and a capped collection of two documents."""
    fill(one, database)
    with native(one.uri(appName=database)) as opened:
        opened.run("admin", {"ping": 1})
        opened.commands.clear()
        yield opened


def fill(servers, database):
    where = servers.client().get_database(database, write_concern=WriteConcern(len(servers.members)))
    where["c"].insert_many([{"_id": number} for number in range(10)])
    where.create_collection("capped", capped=True, size=1 << 20).insert_many([{"_id": 0}, {"_id": 1}])


def ids(cursor):
    return [row["_id"] for row in cursor]


def cursor_id(db):
    (asked,) = db.commands.bodies("killCursors")
    return asked["cursors"][0]


def is_gone(db, database, number):
    """Return True if the server no longer has this cursor."""
    with pytest.raises(MulticloudDbError) as caught:
        db.run(database, {"getMore": number, "collection": "c"})
    return caught.value.detail.native_code == str(NOT_FOUND)


class TestReading:
    def test_rc_18_a_cursor_command_gives_every_document(self, db, database):
        assert ids(db.cursor(database, {"find": "c", "batchSize": 3})) == list(range(10))

    @pytest.mark.parametrize(
        "command",
        [
            {"aggregate": "c", "pipeline": [], "cursor": {"batchSize": 4}},
            {"listCollections": 1, "cursor": {"batchSize": 1}},
            {"listIndexes": "c"},
        ],
        ids=lambda command: next(iter(command)),
    )
    def test_rc_18_so_does_any_command_that_replies_with_one(self, db, database, command):
        name = next(iter(command))
        found = list(db.cursor(database, command))
        assert len(found) == {"aggregate": 10, "listCollections": 2, "listIndexes": 1}[name]

    def test_rc_19_a_reply_without_a_cursor_is_an_error(self, db, database):
        error = refused(db.cursor, database, {"ping": 1})
        assert error.category == INVALID
        assert "run_command" in error.message
        assert error.detail.operation == "run_cursor_command"

    def test_rc_23_a_step_gives_one_document(self, db, database):
        with db.cursor(database, {"find": "c", "batchSize": 3}) as cursor:
            assert next(cursor) == {"_id": 0}
            assert next(cursor) == {"_id": 1}
            assert db.commands.names("getMore") == []
            assert iter(cursor) is cursor

    def test_rc_23_an_empty_batch_is_not_the_end(self, db, database):
        with db.cursor(database, {"find": "c", "batchSize": 0}) as cursor:
            assert next(cursor) == {"_id": 0}
            assert db.commands.names("getMore") == ["getMore"]

    def test_rc_23_an_end_stays_the_end(self, db, database):
        cursor = db.cursor(database, {"find": "c"})
        assert len(list(cursor)) == 10
        assert list(cursor) == []
        assert cursor.try_next() is None
        assert not cursor.alive

    def test_documents_are_decoded_alike_in_every_batch(self, one, database):
        class Rounded(TypeDecoder):
            bson_type = Decimal128

            def transform_bson(self, value):
                return float(value.to_decimal())

        one.client()[database]["c"].insert_many(
            [{"x": Decimal128("1.10"), "y": ObjectId()} for _ in range(4)]
        )
        options = {"tz_aware": True, "type_registry": TypeRegistry([Rounded()])}
        with native(one.uri(), **options) as db, connect(one.uri()) as client:
            for run in (db.cursor, client.run_cursor_command):
                found = list(run(database, {"find": "c", "batchSize": 2}))
                assert [row["x"] for row in found] == [Decimal128("1.10")] * 4

    def test_commands_are_encoded_as_the_client_encodes_them(self, one, database):
        def encoded(value):
            return str(value)

        one.client()[database]["c"].insert_one({"_id": "2j"})
        with native(one.uri(), type_registry=TypeRegistry(fallback_encoder=encoded)) as db:
            assert db.run(database, {"find": "c", "filter": {"_id": 2j}})["cursor"]["firstBatch"]
            assert list(db.cursor(database, {"find": "c", "filter": {"_id": 2j}}))

    def test_a_client_that_reads_raw_documents_gets_them_from_a_cursor(self, one, database):
        fill(one, database)
        with native(one.uri(), document_class=RawBSONDocument) as db:
            found = list(db.cursor(database, {"find": "c", "batchSize": 6}))
        assert {type(row) for row in found} == {RawBSONDocument}
        assert ids(found) == list(range(10))


class TestSessionAndServer:
    def test_rc_20_every_get_more_is_in_the_session_of_the_command(self, db, database):
        list(db.cursor(database, {"find": "c", "batchSize": 3}, batch_size=4))
        sent = {str(event.command["lsid"]) for event in db.commands.sent("find", "getMore")}
        assert len(db.commands.names("getMore")) == 2
        assert len(sent) == 1

    def test_rc_20_the_callers_session_is_used_and_stays_open(self, db, database):
        with db.own.start_session() as session:
            lsid = session.session_id  # from here on, no other session uses this id
            list(db.cursor(database, {"find": "c", "batchSize": 3}, session=session))
            sent = [event.command["lsid"] for event in db.commands.sent("find", "getMore")]
            assert sent == [lsid, lsid]
            assert not session.has_ended

    def test_rc_20_the_session_is_kept_as_long_as_the_cursor_lives(self, db, database):
        with db.cursor(database, {"find": "c", "batchSize": 3}):
            db.run(database, {"ping": 1})
            assert db.body("ping")["lsid"] != db.body("find")["lsid"]

    def test_rc_20_it_is_given_back_when_the_server_has_sent_all_and_not_later(self, db, database):
        cursor = db.cursor(database, {"find": "c", "batchSize": 3})
        for _ in range(4):
            next(cursor)  # six more documents have already arrived, and the server's cursor no longer exists
        db.run(database, {"ping": 1})
        assert db.body("ping")["lsid"] == db.body("find")["lsid"]
        assert len(list(cursor)) == 6

    @pytest.mark.parametrize("preference", [ReadPreference.SECONDARY, Nearest(), ReadPreference.PRIMARY])
    def test_rc_21_every_get_more_goes_to_the_server_of_the_command(self, three, database, preference):
        fill(three, database)
        with native(three.uri(localThresholdMS=1000)) as db:
            for _ in range(4):
                with db.cursor(
                    database, {"find": "c", "batchSize": 1}, read_preference=preference, batch_size=2
                ) as cursor:
                    for _ in range(5):
                        next(cursor)
                names = db.commands.names("find", "getMore", "killCursors")
                assert names == ["find", "getMore", "getMore", "killCursors"]
                nodes = {*db.nodes("find"), *db.nodes("getMore"), *db.nodes("killCursors")}
                assert len(nodes) == 1
                if preference != Nearest():
                    assert (nodes == {three.wait_primary()}) is (preference == ReadPreference.PRIMARY)
                db.commands.clear()


class TestGetMore:
    def test_rc_24_batch_size_and_comment_are_of_the_get_more_alone(self, db, database):
        comment = {"who": ["me", 1]}
        list(db.cursor(database, {"find": "c", "batchSize": 1}, batch_size=4, comment=comment))
        assert db.body("find").get("comment") is None
        assert db.body("find")["batchSize"] == 1
        asked = db.commands.bodies("getMore")
        assert [(body["batchSize"], body["comment"]) for body in asked] == [(4, comment)] * 3

    def test_rc_24_max_time_ms_is_of_the_get_more_alone(self, db, database):
        with db.cursor(database, AWAITING, cursor_type="tailable_await", max_time_ms=20) as cursor:
            assert [next(cursor), next(cursor), cursor.try_next()] == [{"_id": 0}, {"_id": 1}, None]
        assert "maxTimeMS" not in db.body("find")
        assert db.body("getMore")["maxTimeMS"] == 20

    def test_rc_24_without_them_a_get_more_has_none(self, db, database):
        list(db.cursor(database, {"find": "c", "batchSize": 1}))
        assert not {"batchSize", "maxTimeMS", "comment"} & set(db.body("getMore"))

    def test_rc_24_what_the_command_holds_of_them_is_of_the_command_alone(self, db, database):
        command = {"find": "c", "batchSize": 1, "maxTimeMS": 5000, "comment": "mine"}
        list(db.cursor(database, command, batch_size=50, comment="theirs"))
        sent = db.body("find")
        assert {name: sent[name] for name in command} == command
        assert (db.body("getMore")["comment"], "maxTimeMS" in db.body("getMore")) == ("theirs", False)

    @pytest.mark.parametrize(("asked", "sent"), [(1, 2), (2, 2), (2**31 - 1, 2**31 - 1)])
    def test_rc_24_any_positive_batch_size_is_taken(self, db, database, asked, sent):
        # pymongo asks for two documents instead of one, as the option's documentation says.
        list(db.cursor(database, {"find": "c", "batchSize": 1}, batch_size=asked))
        assert {body["batchSize"] for body in db.commands.bodies("getMore")} == {sent}

    def test_rc_25_the_batch_size_may_be_changed_on_the_way(self, db, database):
        with db.cursor(database, {"find": "c", "batchSize": 1}, batch_size=2, comment="x") as cursor:
            for _ in range(3):
                next(cursor)
            cursor.batch_size(3)
            for _ in range(3):
                next(cursor)
            assert "is 0" in refused(cursor.batch_size, 0).message
            cursor.batch_size(None)
            assert len(list(cursor)) == 4
        asked = [(body.get("batchSize"), body["comment"]) for body in db.commands.bodies("getMore")]
        assert asked == [(2, "x"), (3, "x"), (None, "x")]

    def test_rc_15_a_get_more_is_not_tried_again(self, one, db, database):
        cursor = db.cursor(database, {"find": "c", "batchSize": 2})
        with fail_command(one, commands=["getMore"], app_name=database, closeConnection=True):
            assert [next(cursor), next(cursor)] == [{"_id": 0}, {"_id": 1}]
            error = refused(next, cursor)
        assert (error.category, error.detail.operation) == (TRANSIENT, "run_cursor_command")
        assert (error.detail.provider, error.detail.native_class) == ("mongo", "pymongo.errors.AutoReconnect")
        assert db.commands.names("find", "getMore") == ["find", "getMore"]

    def test_a_cursor_that_has_failed_never_looks_like_one_at_its_end(self, one, db, database):
        cursor = db.cursor(database, {"find": "c", "batchSize": 2})
        with fail_command(one, commands=["getMore"], app_name=database, errorCode=8000):
            next(cursor)
            next(cursor)
            first = refused(next, cursor)
        for again in (refused(next, cursor), refused(cursor.try_next)):
            assert (again.category, again.message) == (first.category, first.message)
        assert not cursor.alive
        assert db.commands.names("getMore") == ["getMore"]


class TestTailable:
    @pytest.mark.parametrize(
        ("command", "kind"), [(TAILABLE, "tailable"), (AWAITING, "tailable_await")], ids=["tailable", "await"]
    )
    def test_rc_26_a_tailable_cursor_continues_after_an_empty_batch(self, one, db, database, command, kind):
        with db.cursor(database, command, cursor_type=kind) as cursor:
            assert [next(cursor), next(cursor)] == [{"_id": 0}, {"_id": 1}]
            assert cursor.try_next() is None
            assert cursor.alive
            one.client()[database]["capped"].insert_one({"_id": 2})
            assert next(cursor) == {"_id": 2}

    def test_rc_26_an_awaiting_cursor_blocks_until_there_is_data(self, one, db, database):
        with db.cursor(database, AWAITING, cursor_type="tailable_await", max_time_ms=60_000) as cursor:
            next(cursor)
            next(cursor)
            writer = threading.Timer(0.1, one.client()[database]["capped"].insert_one, [{"_id": 2}])
            writer.start()
            assert next(cursor) == {"_id": 2}
            writer.join()
        assert db.commands.names("getMore") == ["getMore"]

    def test_rc_26_a_mismatch_is_left_to_the_server(self, db, database):
        cursor = db.cursor(
            database, {"find": "c", "batchSize": 1}, cursor_type="tailable_await", max_time_ms=5
        )
        next(cursor)
        error = refused(next, cursor)
        assert (error.category, error.detail.native_code) == (INVALID, "2")


class TestClose:
    def test_rc_27_close_kills_the_servers_cursor_and_gives_the_session_back(self, db, database):
        cursor = db.cursor(database, {"find": "c", "batchSize": 2})
        next(cursor)
        cursor.close()
        asked = db.body("killCursors")
        assert (asked["killCursors"], asked["$db"], asked["lsid"]) == ("c", database, db.body("find")["lsid"])
        assert is_gone(db, database, cursor_id(db))
        assert db.body("getMore")["lsid"] == asked["lsid"]

    def test_rc_27_close_may_be_called_again_and_a_step_after_it_is_an_error(self, db, database):
        cursor = db.cursor(database, {"find": "c", "batchSize": 2})
        for _ in range(3):
            cursor.close()
        for step in (cursor.__next__, cursor.try_next):
            assert refused(step).category == INVALID
        assert not cursor.alive
        assert db.commands.names() == ["find", "killCursors"]

    def test_rc_27_a_with_block_closes(self, db, database):
        with db.cursor(database, {"find": "c", "batchSize": 2}) as cursor:
            assert isinstance(cursor, RunCommandCursor)
            assert repr(cursor) == "<RunCommandCursor alive>"
        assert db.commands.names() == ["find", "killCursors"]
        assert repr(cursor) == "<RunCommandCursor ended>"

    def test_rc_27_a_cursor_that_the_server_has_ended_is_not_killed(self, db, database):
        with db.cursor(database, {"find": "c"}) as cursor:
            assert len(list(cursor)) == 10
        assert db.commands.names() == ["find"]

    @pytest.mark.parametrize(
        "failure", [{"errorCode": 8000}, {"closeConnection": True}], ids=["error", "cut"]
    )
    def test_rc_27_a_kill_that_fails_is_ignored(self, one, db, database, failure):
        with fail_command(one, commands=["killCursors"], app_name=database, times=None, **failure):
            db.cursor(database, {"find": "c", "batchSize": 2}).close()
            assert "killCursors" in db.commands.names()
        db.run(database, {"ping": 1})
        # The session is returned to the pool, but is not used again after a lost connection.
        assert (db.body("ping")["lsid"] == db.body("find")["lsid"]) is ("errorCode" in failure)

    def test_rc_27_the_timeout_counts_again_for_a_close(self, db, database):
        cursor = patient(lambda: db.cursor(database, {"find": "c", "batchSize": 2}, timeout_ms=1000))
        time.sleep(1.05)
        cursor.close()
        assert db.body("killCursors")["maxTimeMS"] > 100
        assert is_gone(db, database, cursor_id(db))

    def test_rc_27_closing_the_client_closes_its_cursors(self, one, db, database):
        with connect(one.uri(), native_client=db.own) as client:
            cursor = client.run_cursor_command(database, {"find": "c", "batchSize": 2})
            next(cursor)
        assert (
            refused(next, cursor).category == INVALID
        )  # the second document has arrived, but the client is closed
        assert is_gone(db, database, cursor_id(db))

    def test_rc_27_a_cursor_that_comes_while_the_client_closes_is_closed_too(self, db, database):
        commands = Commands(db.own)
        commands.close()
        assert not commands.run_cursor_command(database, {"find": "c", "batchSize": 2}, {}).alive
        assert is_gone(db, database, cursor_id(db))

    def test_rc_27_a_cursor_that_nobody_holds_is_closed(self, db, database):
        next(db.cursor(database, {"find": "c", "batchSize": 2}))
        gc.collect()
        wait_until(lambda: db.commands.ends("killCursors"))
        assert is_gone(db, database, cursor_id(db))

    def test_a_client_closes_soon_though_its_server_hangs(self, one, db, database):
        with connect(one.uri(), native_client=db.own) as client:
            cursors = [client.run_cursor_command(database, {"find": "c", "batchSize": 2}) for _ in range(3)]
            with hanging(one):
                began = time.monotonic()
                client.close()
                assert time.monotonic() - began < SOON
        assert not any(cursor.alive for cursor in cursors)


class TestTimeouts:
    """Tests timeouts as defined in MongoDB's specification "Client Side Operations Timeout" (CSOT)."""

    def test_rc_28_the_server_is_told_the_time_that_is_left(self, db, database):
        list(db.cursor(database, {"find": "c", "batchSize": 2, "maxTimeMS": 77}, timeout_ms=60_000))
        assert 77 < db.body("find")["maxTimeMS"] <= 60_000
        assert "maxTimeMS" not in db.body("getMore")

    def test_rc_28_without_a_timeout_a_max_time_in_the_command_is_sent_as_it_is(self, db, database):
        list(db.cursor(database, {"find": "c", "batchSize": 2, "maxTimeMS": 7777}))
        assert db.body("find")["maxTimeMS"] == 7777

    @pytest.mark.parametrize("kind", ["non_tailable", "tailable", "tailable_await"])
    def test_rc_28_a_timeout_and_the_max_time_of_get_more_exclude_each_other(self, db, database, kind):
        options = {"cursor_type": kind, "timeout_ms": 1000, "max_time_ms": 10}
        error = refused(db.cursor, database, AWAITING, **options)
        assert (error.category, db.commands.names()) == (INVALID, [])
        assert "max_time_ms" in error.message

    def test_rc_28_no_timeout_at_all_goes_with_it(self, db, database):
        options = {"cursor_type": "tailable_await", "timeout_ms": 0, "max_time_ms": 10}
        with db.cursor(database, AWAITING, **options) as cursor:
            assert [next(cursor)["_id"], next(cursor)["_id"], cursor.try_next()] == [0, 1, None]

    @pytest.mark.parametrize(("wait", "works"), [(4999, True), (5000, False)])
    def test_rc_28_the_wait_stays_below_the_timeout_of_the_client(self, one, database, wait, works):
        fill(one, database)
        with native(one.uri(timeoutMS=5000)) as db:
            options = {"cursor_type": "tailable_await", "max_time_ms": wait}
            if works:
                db.cursor(database, AWAITING, **options).close()
            else:
                assert refused(db.cursor, database, AWAITING, **options).category == INVALID

    def test_rc_29_by_default_a_timeout_is_for_the_whole_life_of_a_cursor(self, db, database):
        for mode in ({}, {"timeout_mode": "cursor_lifetime"}):
            options = {"timeout_ms": 1000, "batch_size": 2, **mode}
            cursor = patient(
                lambda given=options: db.cursor(database, {"find": "c", "batchSize": 3}, **given)
            )
            assert next(cursor) == {"_id": 0}
            time.sleep(1.05)
            # Documents that have already arrived are returned even after the time limit.
            assert [next(cursor), next(cursor)] == [{"_id": 1}, {"_id": 2}]
            error = refused(next, cursor)
            assert (error.category, error.retryable) == (TRANSIENT, True)
            assert db.commands.names("getMore") == []

    def test_rc_29_the_timeout_of_the_client_is_for_the_whole_life_as_well(self, one, database):
        fill(one, database)
        with native(one.uri(timeoutMS=1000)) as db:
            cursor = patient(lambda: db.cursor(database, {"find": "c", "batchSize": 1}))
            next(cursor)
            time.sleep(1.05)
            assert refused(next, cursor).category == TRANSIENT
            assert len(list(db.cursor(database, {"find": "c", "batchSize": 1}, timeout_ms=0))) == 10

    def test_rc_29_a_get_more_has_only_the_time_that_is_left(self, one, db, database):
        cursor = db.cursor(database, {"find": "c", "batchSize": 1}, timeout_ms=3800, batch_size=2)
        hang = {"blockConnection": True, "blockTimeMS": 900}
        found = []
        with fail_command(one, commands=["getMore"], app_name=database, times=None, **hang):
            error = refused(found.extend, cursor)
        assert 1 < len(found) < 10
        assert error.category == TRANSIENT

    def test_rc_29_with_iteration_each_step_has_the_whole_timeout(self, one, db, database):
        options = {"timeout_ms": 4000, "timeout_mode": "iteration", "batch_size": 2}
        cursor = db.cursor(database, {"find": "c", "batchSize": 1}, **options)
        hang = {"blockConnection": True, "blockTimeMS": 900}
        began = time.monotonic()
        with fail_command(one, commands=["getMore"], app_name=database, times=None, **hang):
            assert len(list(cursor)) == 10
        assert time.monotonic() - began > 4.0

    def test_rc_29_with_iteration_a_step_that_takes_too_long_fails(self, one, database):
        fill(one, database)
        with native(one.uri(socketTimeoutMS=15000)) as db:
            options = {"timeout_ms": 1000, "timeout_mode": "iteration"}
            cursor = patient(lambda: db.cursor(database, {"find": "c", "batchSize": 1}, **options))
            next(cursor)
            with hanging(one):
                began = time.monotonic()
                error = refused(next, cursor)
                assert time.monotonic() - began < SOON
        assert (error.category, error.retryable) == (TRANSIENT, True)

    def test_rc_29_with_iteration_the_server_counts_no_time_for_the_whole_life(self, db, database):
        # Each document takes the server 420 ms, so a maxTimeMS in the command would stop the command
        # half-way.
        slow = {"find": "c", "batchSize": 1, "filter": {"$where": "sleep(420) || true"}}
        options = {"timeout_ms": 4000, "timeout_mode": "iteration", "batch_size": 2}
        assert len(list(db.cursor(database, slow, **options))) == 10
        assert not [body for body in db.commands.bodies("find") if "maxTimeMS" in body]
        assert not [body for body in db.commands.bodies("getMore") if "maxTimeMS" in body]

    @pytest.mark.parametrize(
        ("command", "kind"),
        [
            ({"find": "c", "batchSize": 2}, "non_tailable"),
            (TAILABLE, "tailable"),
            (AWAITING, "tailable_await"),
        ],
        ids=["non_tailable", "tailable", "tailable_await"],
    )
    def test_rc_29_with_iteration_the_command_has_its_timeout_too(self, one, database, command, kind):
        fill(one, database)
        with native(one.uri(socketTimeoutMS=15000)) as db:
            db.run(database, {"ping": 1})
            with hanging(one):
                began = time.monotonic()
                options = {"timeout_ms": 300, "timeout_mode": "iteration", "cursor_type": kind}
                error = refused(db.cursor, database, command, **options)
                assert time.monotonic() - began < SOON
            assert error.category == TRANSIENT
            # The limit may be sent only if the server does not apply it to the cursor's whole life.
            assert ("maxTimeMS" in db.body("find")) is (kind == "tailable_await")

    def test_rc_29_with_iteration_a_max_time_in_the_command_is_the_callers(self, db, database):
        options = {"timeout_ms": 60_000, "timeout_mode": "iteration"}
        list(db.cursor(database, {"find": "c", "batchSize": 2, "maxTimeMS": 7777}, **options))
        assert db.body("find")["maxTimeMS"] == 7777

    @pytest.mark.parametrize(
        ("command", "kind"), [(TAILABLE, "tailable"), (AWAITING, "tailable_await")], ids=["tailable", "await"]
    )
    def test_rc_29_a_tailable_cursor_has_its_timeout_for_each_step_as_a_whole(
        self, one, db, database, command, kind
    ):
        cursor = db.cursor(database, command, cursor_type=kind, timeout_ms=3000)
        for number in (0, 1, 2):
            one.client()[database]["capped"].insert_one({"_id": 2 + number})
            time.sleep(0.2)
            assert next(cursor) == {"_id": number}
        for _ in range(2):
            next(cursor)
        began = time.monotonic()
        # There may be many getMore commands, or a single getMore that waits.
        error = refused(next, cursor)
        assert 2.9 < time.monotonic() - began < SOON + 2
        assert error.category == TRANSIENT

    @pytest.mark.parametrize("kind", ["tailable", "tailable_await"])
    def test_rc_29_a_tailable_cursor_has_no_lifetime(self, db, database, kind):
        options = {"cursor_type": kind, "timeout_mode": "cursor_lifetime", "timeout_ms": 100}
        error = refused(db.cursor, database, AWAITING, **options)
        assert (error.category, db.commands.names()) == (INVALID, [])
        assert "iteration" in error.message

    @pytest.mark.parametrize("mode", ["iteration", "cursor_lifetime"])
    def test_rc_29_a_mode_needs_a_timeout(self, db, database, mode):
        error = refused(db.cursor, database, {"find": "c"}, timeout_mode=mode)
        assert (error.category, db.commands.names()) == (INVALID, [])
        assert "timeout_ms" in error.message

    def test_rc_29_the_timeout_of_the_client_is_one(self, one, database):
        fill(one, database)
        with native(one.uri(timeoutMS=60_000)) as db:
            assert len(list(db.cursor(database, {"find": "c"}, timeout_mode="iteration"))) == 10


class TestWrongCalls:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"batchSize": 5}, "'batch_size'"),
            ({"max_await_time_ms": 5}, "'max_time_ms'"),
            ({"timeout_mode": "ITERATION"}, "'ITERATION'"),
            ({"timeout_mode": "iterations"}, "did you mean 'iteration'"),
            ({"timeout_mode": 1}, "is a int"),
            ({"cursor_type": "tailable_awaits"}, "did you mean 'tailable_await'"),
            ({"cursor_type": 2}, "non_tailable"),
            ({"batch_size": 0}, "is 0"),
            ({"batch_size": True}, "is a bool"),
            ({"max_time_ms": -1}, "is -1"),
            ({"max_time_ms": "5"}, "is a str"),
            ({"timeout_ms": -1}, "is -1"),
        ],
    )
    def test_a_wrong_option_is_refused_with_the_way_out(self, db, database, options, words):
        error = refused(db.cursor, database, {"find": "c"}, **options)
        assert (error.category, db.commands.names()) == (INVALID, [])
        assert words in error.message

    def test_what_is_no_command_or_database_is_refused(self, db, database):
        for name, command in [
            (database, {}),
            (database, "find"),
            ("", {"find": "c"}),
            ("a.b", {"find": "c"}),
        ]:
            assert refused(db.cursor, name, command).category == INVALID
        assert db.commands.names() == []

    def test_a_failure_of_the_command_is_the_servers(self, db, database):
        error = refused(db.cursor, database, {"find": "c", "typo": 1})
        assert (error.category, error.detail.native_code) == (INVALID, "40415")
        assert error.detail.operation == "run_cursor_command"

    @pytest.mark.parametrize("kind", [dict, SON], ids=["dict", "SON"])
    @pytest.mark.parametrize("mode", ["cursor_lifetime", "iteration"])
    def test_rc_06_a_command_is_not_changed(self, db, database, kind, mode):
        command = kind([("find", "c"), ("batchSize", 2), ("filter", {"_id": {"$gte": 0}})])
        before = copy.deepcopy(command)
        options = {"timeout_ms": 60_000, "timeout_mode": mode, "batch_size": 3, "comment": "x"}
        assert len(list(db.cursor(database, command, **options))) == 10
        assert (command, list(command)) == (before, list(before))

    def test_a_cursor_of_one_client_does_not_keep_another_from_closing(self, one, database):
        fill(one, database)
        with MongoClient(one.uri()) as own, connect(one.uri(), native_client=own) as client:
            cursor = client.run_cursor_command(database, {"find": "c", "batchSize": 2})
            connect(one.uri(), native_client=own).close()
            assert len(list(cursor)) == 10
