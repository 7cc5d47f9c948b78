"""Tests rows RC-1 to RC-17 of MongoDB's "Run Command" specification, which apply to every command.

The driver's own monitoring shows the commands. test_run_cursor_command.py tests the rows about cursors.
"""

import copy
import time
import traceback
from datetime import UTC, datetime, timedelta

import pytest
from bson import Binary, Code, Decimal128, Int64, ObjectId, Regex, Timestamp, encode
from bson.raw_bson import RawBSONDocument
from bson.son import SON
from pymongo import MongoClient, ReadPreference, WriteConcern
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import Nearest, Secondary
from pymongo.server_api import ServerApi

from multiclouddb_api import Capability, ErrorCategory, connect

from .native import hanging, native, refused
from .servers.failpoint import fail_command
from .standalone import standalone

INVALID = ErrorCategory.INVALID_REQUEST
TRANSIENT = ErrorCategory.TRANSIENT_FAILURE
ADDED = {"lsid", "$clusterTime", "$db", "$readPreference", "txnNumber", "apiVersion"}
# Long enough for a slow machine, but much shorter than a call without a limit.
SOON = 8.0
SECRET = "correct-horse-battery"
OVERLOADED = {"errorCode": 462, "errorLabels": ["SystemOverloadedError", "RetryableError"]}


@pytest.fixture
def db(one, database):
    with native(one.uri(appName=database)) as opened:
        opened.run("admin", {"ping": 1})
        opened.commands.clear()
        yield opened


class TestCalls:
    def test_rc_01_a_command_is_run_and_its_reply_is_returned(self, db, database):
        db.run(database, {"insert": "c", "documents": [{"_id": 1}]})
        assert db.run(database, {"count": "c"})["n"] == 1
        assert db.client.capabilities().is_supported(Capability.RUN_COMMAND)

    def test_rc_01_commands_of_a_client_of_our_own_run_just_as_well(self, one, database):
        # Only sessions and monitoring need a native client; most applications have none.
        with connect(one.uri()) as client:
            assert client.run_command(database, {"ping": 1})["ok"] == 1

    def test_rc_07_the_database_is_sent_along(self, db, database):
        db.run(database, {"ping": 1})
        assert db.body("ping")["$db"] == database

    def test_rc_12_the_cluster_time_is_gossiped(self, one, db, database):
        db.run(database, {"ping": 1})
        before = db.body("ping")["$clusterTime"]["clusterTime"]
        one.client()[database]["c"].insert_one({})
        db.run(database, {"hello": 1})  # its reply confirms the write
        db.commands.clear()
        db.run(database, {"ping": 1})
        assert db.body("ping")["$clusterTime"]["clusterTime"] > before

    def test_rc_16_the_fields_of_the_stable_api_are_attached_as_the_client_was_configured(
        self, one, database
    ):
        with native(one.uri(), server_api=ServerApi("1", strict=True, deprecation_errors=True)) as db:
            db.run(database, {"ping": 1})
            body = db.body("ping")
        assert (body["apiVersion"], body["apiStrict"], body["apiDeprecationErrors"]) == ("1", True, True)

    def test_rc_16_without_such_a_configuration_there_are_none(self, db, database):
        db.run(database, {"ping": 1})
        assert not {"apiVersion", "apiStrict", "apiDeprecationErrors"} & set(db.body("ping"))


class TestTheCommandIsTheCallers:
    VALUES = {  # noqa: RUF012
        "text": "a",
        "number": Int64(2**60),
        "exact": Decimal128("1.10"),
        "id": ObjectId(),
        "time": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "stamp": Timestamp(5, 6),
        "bytes": Binary(b"x", 128),
        "regex": Regex("a.*"),
        "code": Code("f()"),
        "list": [1, {"$deep": {"": None}}],
    }

    @pytest.mark.parametrize("field", ["apiVersionX", "readConcernX", "writeConcernX", "typo"])
    def test_rc_05_a_command_is_not_inspected(self, db, database, field):
        error = refused(db.run, database, {"find": "c", field: 1})
        assert db.body("find")[field] == 1
        assert (error.category, error.detail.native_code) == (INVALID, "40415")  # the server's own code

    def test_rc_05_a_command_that_nobody_knows_is_sent_as_well(self, db, database):
        error = refused(db.run, database, {"frobnicate": 1, "x": {"y": [2]}})
        assert db.body("frobnicate")["x"] == {"y": [2]}
        assert (error.category, error.detail.native_code) == (INVALID, "59")
        assert "frobnicate" in error.message

    def test_rc_05_every_value_arrives_as_it_is(self, db, database):
        db.run(database, {"insert": "c", "documents": [{"_id": 1, **self.VALUES}]})
        (stored,) = db.own.get_database(database)["c"].find({}, {"_id": 0})
        assert stored | {"time": None} == self.VALUES | {"time": None}
        assert stored["time"].replace(tzinfo=UTC) == self.VALUES["time"]

    @pytest.mark.parametrize("kind", [dict, SON], ids=["dict", "SON"])
    @pytest.mark.parametrize("timeout", [None, 60_000])
    def test_rc_06_a_command_is_not_changed(self, db, database, kind, timeout):
        command = kind([("insert", "c"), ("documents", [{"x": 1}]), ("maxTimeMS", 9000)])
        parts, before = list(command.items()), copy.deepcopy(command)
        db.run(database, command, timeout_ms=timeout)
        assert (command, list(command)) == (before, list(before))
        assert all(command[name] is value for name, value in parts)

    def test_rc_06_a_command_may_be_any_mapping(self, db, database):
        assert db.run(database, RawBSONDocument(encode({"ping": 1})))["ok"] == 1

    def test_rc_11_an_lsid_in_the_command_is_not_looked_for(self, db, database):
        mine = {"id": Binary(b"0" * 16, 4)}
        command = {"ping": 1, "lsid": mine}
        assert db.run(database, command)["ok"] == 1
        # The specification does not define this case, so the driver's default applies.
        assert db.body("ping")["lsid"] != mine
        assert command == {"ping": 1, "lsid": mine}

    def test_rc_14_neither_concern_is_inherited(self, one, database):
        options = {"readConcernLevel": "majority", "w": "majority", "wTimeoutMS": 5000, "journal": True}
        with native(one.uri(**options)) as db:
            db.run(database, {"insert": "c", "documents": [{}]})
            db.run(database, {"find": "c"})
            bodies = db.commands.bodies("insert") + db.commands.bodies("find")
        assert not [body for body in bodies if {"readConcern", "writeConcern"} & set(body)]

    def test_rc_14_concerns_in_the_command_are_left_alone(self, db, database):
        db.run(database, {"insert": "c", "documents": [{}], "writeConcern": {"w": 1, "j": True}})
        db.run(database, {"find": "c", "readConcern": {"level": "local"}})
        assert db.body("insert")["writeConcern"] == {"w": 1, "j": True}
        assert db.body("find")["readConcern"] == {"level": "local"}

    @pytest.mark.parametrize("name", ["read_concern", "write_concern", "readConcern"])
    def test_rc_14_there_are_no_such_options(self, db, database, name):
        error = refused(db.run, database, {"ping": 1}, **{name: "majority"})
        assert (error.category, db.commands.names()) == (INVALID, [])


class TestReadPreference:
    def test_rc_02_the_primary_is_asked_whatever_the_client_prefers(self, three, database):
        with native(three.uri(readPreference="secondary")) as db:
            db.run(database, {"ping": 1})
            assert "$readPreference" not in db.body("ping")
            assert db.nodes("ping") == [three.wait_primary()]

    def test_rc_02_the_preference_of_the_call_is_sent(self, db, database):
        db.run(database, {"ping": 1}, read_preference=Nearest(tag_sets=[{"room": "1"}, {}]))
        assert db.body("ping")["$readPreference"] == {"mode": "nearest", "tags": [{"room": "1"}, {}]}

    @pytest.mark.parametrize("preference", [Secondary(), Nearest(tag_sets=[{"none": "such"}])])
    def test_rc_02_a_preference_that_nobody_meets_is_not_met_by_another(self, db, database, preference):
        error = refused(db.run, database, {"ping": 1}, read_preference=preference, timeout_ms=50)
        assert (error.category, error.retryable, db.commands.names("ping")) == (TRANSIENT, True, [])

    def test_rc_08_every_command_counts_as_a_read_in_selection(self, three, database):
        with native(three.uri()) as db:
            write = {"insert": "c", "documents": [{}]}
            error = refused(db.run, database, write, read_preference=ReadPreference.SECONDARY)
            assert db.nodes("insert")[0] in set(three.members) - {three.wait_primary()}
        # The secondary reports this error, not the library.
        assert (error.category, error.detail.native_code) == (TRANSIENT, "10107")

    def test_rc_08_a_secondary_answers(self, three, database):
        three.client()[database].get_collection("c", write_concern=WriteConcern(3)).insert_one({})
        with native(three.uri()) as db:
            reply = db.run(database, {"count": "c"}, read_preference=ReadPreference.SECONDARY)
            assert reply["n"] == 1
            assert db.nodes("count")[0] in set(three.members) - {three.wait_primary()}

    def test_rc_09_a_replica_set_is_told_the_preference_unless_it_is_primary(self, three, database):
        with native(three.uri()) as db:
            for preference in (ReadPreference.PRIMARY, ReadPreference.SECONDARY, ReadPreference.NEAREST):
                db.run(database, {"ping": 1}, read_preference=preference)
            sent = [body.get("$readPreference") for body in db.commands.bodies("ping")]
        assert sent == [None, {"mode": "secondary"}, {"mode": "nearest"}]

    def test_rc_09_a_standalone_server_is_not(self, tmp_path):
        with standalone(tmp_path) as uri, native(uri) as db:
            db.run("d", {"ping": 1}, read_preference=ReadPreference.SECONDARY)
            assert "$readPreference" not in db.body("ping")


class TestSessions:
    def test_rc_03_a_session_is_used(self, db, database):
        with db.own.start_session() as session:
            lsid = session.session_id  # from here on, no other session uses this id
            db.run(database, {"ping": 1}, session=session)
            assert db.body("ping")["lsid"] == lsid
            assert not session.has_ended

    def test_rc_03_a_session_that_has_ended_is_refused(self, db, database):
        with db.own.start_session() as session:
            pass
        error = refused(db.run, database, {"ping": 1}, session=session)
        assert (error.category, db.commands.names("ping")) == (INVALID, [])

    def test_rc_03_a_session_of_another_client_is_refused(self, one, db, database):
        with MongoClient(one.uri()) as other, other.start_session() as session:
            error = refused(db.run, database, {"ping": 1}, session=session)
        assert (error.category, db.commands.names("ping")) == (INVALID, [])

    def test_rc_10_without_one_the_command_gets_one_for_itself(self, db, database):
        with db.own.start_session() as session:
            db.run(database, {"ping": 1}, session=session)
            db.run(database, {"ping": 1})
        given, taken = (body["lsid"] for body in db.commands.bodies("ping"))
        assert taken["id"] != given["id"]

    def test_rc_13_a_transaction_has_its_fields_and_its_read_concern_once(self, one, db, database):
        one.client()[database]["c"].insert_one({"_id": 0})
        with db.own.start_session() as session:
            with session.start_transaction(read_concern=ReadConcern("snapshot")):
                db.run(database, {"insert": "c", "documents": [{"_id": 1}]}, session=session)
                found = db.run(database, {"find": "c"}, session=session)["cursor"]["firstBatch"]
                first, second = db.body("insert"), db.body("find")
                outside = db.run(database, {"find": "c"})["cursor"]["firstBatch"]
            after = db.run(database, {"find": "c"})["cursor"]["firstBatch"]
            lsid = session.session_id
        assert [len(rows) for rows in (found, outside, after)] == [2, 1, 2]
        assert first["startTransaction"] is True
        assert first["readConcern"]["level"] == "snapshot"
        assert "startTransaction" not in second
        assert "readConcern" not in second
        for body in (first, second):
            assert body["autocommit"] is False
            assert body["txnNumber"] == 1
            assert body["lsid"] == lsid

    def test_rc_13_the_default_read_concern_is_not_sent_in_a_transaction(self, one, db, database):
        one.client()[database]["c"].insert_one({"_id": 0})
        with db.own.start_session() as session, session.start_transaction():
            db.run(database, {"find": "c"}, session=session)
        assert "level" not in db.body("find").get("readConcern", {})

    def test_rc_13_the_read_preference_comes_from_the_transaction(self, three, database):
        # The transaction requires another server, and the driver checks this before it sends the command. If
        # the call's own default applied, the command would have worked.
        with native(three.uri()) as db, db.own.start_session() as session:
            session.start_transaction(read_preference=ReadPreference.SECONDARY)
            error = refused(db.run, database, {"find": "c"}, session=session)
            session.abort_transaction()
            assert (error.category, db.commands.names("find")) == (INVALID, [])
        assert "primary" in error.message


class TestTimeouts:
    def test_rc_04_a_timeout_ends_a_call_that_hangs(self, one, database):
        with native(one.uri(socketTimeoutMS=15000)) as db:
            db.run(database, {"ping": 1})
            with hanging(one):
                began = time.monotonic()
                error = refused(db.run, database, {"ping": 1}, timeout_ms=100)
                assert time.monotonic() - began < SOON
        assert (error.category, error.retryable) == (TRANSIENT, True)

    def test_rc_04_selecting_a_server_counts(self):
        with native("mongodb://127.0.0.1:9/") as db:
            began = time.monotonic()
            error = refused(db.run, "d", {"ping": 1}, timeout_ms=100)
            assert time.monotonic() - began < SOON
        assert (error.category, error.retryable) == (TRANSIENT, True)

    def test_rc_04_the_server_is_told_the_time_that_is_left(self, db, database):
        db.run(database, {"ping": 1}, timeout_ms=60_000)
        assert 0 < db.body("ping")["maxTimeMS"] <= 60_000

    def test_rc_04_without_a_timeout_the_server_is_told_nothing(self, db, database):
        db.run(database, {"ping": 1})
        assert "maxTimeMS" not in db.body("ping")

    @pytest.mark.parametrize(("timeout", "low", "high"), [(None, 1, 5000), (60_000, 5001, 60_000)])
    def test_rc_04_the_timeout_of_the_client_counts_where_the_call_has_none(
        self, one, database, timeout, low, high
    ):
        with native(one.uri(timeoutMS=5000)) as db:
            db.run(database, {"ping": 1}, timeout_ms=timeout)
            assert low <= db.body("ping")["maxTimeMS"] <= high

    def test_rc_04_zero_lifts_the_timeout_of_the_client(self, one, database):
        with native(one.uri(timeoutMS=5000)) as db:
            db.run(database, {"ping": 1}, timeout_ms=0)
            assert "maxTimeMS" not in db.body("ping")

    def test_rc_17_a_max_time_in_the_command_is_sent_as_it_is(self, db, database):
        db.run(database, {"find": "c", "maxTimeMS": 1234})
        assert db.body("find")["maxTimeMS"] == 1234

    def test_rc_17_a_timeout_takes_its_place(self, db, database):
        db.run(database, {"find": "c", "maxTimeMS": 1234}, timeout_ms=60_000)
        assert 1234 < db.body("find")["maxTimeMS"] <= 60_000


class TestOnce:
    @pytest.mark.parametrize(
        ("command", "failure"),
        [
            ({"ping": 1}, {"errorCode": 91}),
            ({"ping": 1}, {"closeConnection": True}),
            ({"find": "c"}, {"errorCode": 11600}),
            ({"find": "c"}, {"closeConnection": True}),
            ({"insert": "c", "documents": [{}]}, {"errorCode": 6, "errorLabels": ["RetryableWriteError"]}),
            ({"insert": "c", "documents": [{}]}, {"closeConnection": True}),
        ],
        ids=lambda value: next(iter(value)),
    )
    def test_rc_15_a_command_that_fails_is_not_tried_again(self, one, db, database, command, failure):
        name = next(iter(command))
        with fail_command(one, commands=[name], app_name=database, times=1, **failure):
            error = refused(db.run, database, command)
        assert (error.category, error.retryable) == (TRANSIENT, True)
        assert db.commands.names(name) == [name]

    def test_rc_15_no_transaction_number_is_attached_to_a_write(self, db, database):
        db.run(database, {"insert": "c", "documents": [{}]})
        assert "txnNumber" not in db.body("insert")

    @pytest.mark.parametrize(("retries", "sent"), [(0, 1), (1, 2)])
    def test_rc_15_only_an_overloaded_server_is_asked_again_as_often_as_the_client_says(
        self, one, database, retries, sent
    ):
        # A later specification requires this behaviour of the driver. The server has not run the command.
        with native(one.uri(appName=database, maxAdaptiveRetries=retries)) as db:
            with fail_command(one, commands=["ping"], app_name=database, times=None, **OVERLOADED):
                error = refused(db.run, database, {"ping": 1})
            assert len(db.commands.names("ping")) == sent
        assert error.category == ErrorCategory.THROTTLED


class TestWrongCalls:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"timeoutMS": 5}, "'timeout_ms'"),
            ({"readPreference": 5}, "'read_preference'"),
            ({"timeout_mode": "iteration"}, "'timeout_mode' is not known"),
            ({"timeout_ms": -1}, "is -1"),
            ({"timeout_ms": 1.5}, "is a float"),
            ({"timeout_ms": True}, "is a bool"),
            ({"timeout_ms": timedelta(1)}, "is a timedelta"),
            ({"timeout_ms": 2**31}, "2147483647"),
            ({"read_preference": "secondary"}, "pymongo.ReadPreference.SECONDARY"),
            ({"session": object()}, "start_session"),
        ],
    )
    def test_a_wrong_option_is_refused_with_the_way_out(self, db, database, options, words):
        error = refused(db.run, database, {"ping": 1}, **options)
        assert (error.category, db.commands.names()) == (INVALID, [])
        assert words in error.message

    @pytest.mark.parametrize(
        ("command", "way_out"),
        [
            (None, "pass a dict"),
            ("ping", "pass a dict"),
            ([("ping", 1)], "pass a dict"),
            (7, "pass a dict"),
            ({}, '{"ping": 1}'),
            ({1: 1}, "names are text"),
            ({b"ping": 1}, "names are text"),
        ],
    )
    def test_what_is_no_command_is_refused(self, db, database, command, way_out):
        error = refused(db.run, database, command)
        assert (error.category, db.commands.names()) == (INVALID, [])
        assert way_out in error.message

    @pytest.mark.parametrize("name", ["", None, 5, b"x", "a.b", "a b", "$x", "a\0"])
    def test_what_is_no_database_is_refused(self, db, name):
        error = refused(db.run, name, {"ping": 1})
        assert (error.category, db.commands.names()) == (INVALID, [])

    @pytest.mark.parametrize(
        "value", [object(), 2**64, "\ud800", {1: 1}, {1, 2}, datetime(2026, 1, 1, tzinfo=UTC).date()]
    )
    def test_what_bson_has_not_is_refused(self, db, database, value):
        error = refused(db.run, database, {"insert": "c", "documents": [{"x": value}]})
        assert (error.category, db.commands.names()) == (INVALID, [])

    def test_none_is_the_same_as_an_option_left_out(self, db, database):
        db.run(database, {"ping": 1}, read_preference=None, session=None, timeout_ms=None)
        assert set(db.body("ping")) <= {"ping"} | ADDED


class TestSecrets:
    @pytest.mark.parametrize(
        "more",
        [
            {"roles": "x"},
            {"roles": [], "mechanisms": ["x"]},
            {"roles": ["no-such-role"]},
            {"roles": [], "typo": 1},
            {"roles": [], "digestPassword": "x"},
            {"roles": [{1, 2}]},
            {"roles": [], "customData": object()},
        ],
    )
    def test_a_password_in_a_command_is_in_no_error_and_no_log(self, db, database, caplog, more):
        with caplog.at_level("DEBUG"):
            error = refused(db.run, database, {"createUser": "u", "pwd": SECRET, **more})
        shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.detail) + caplog.text
        assert SECRET not in shown

    def test_a_value_that_cannot_be_sent_is_not_quoted(self, db, database, caplog):
        class Hidden:
            def __repr__(self):
                return SECRET

        with caplog.at_level("DEBUG"):
            error = refused(db.run, database, {"createUser": "u", "pwd": Hidden(), "roles": []})
        shown = "".join(traceback.format_exception(error)) + repr(error) + repr(error.detail) + caplog.text
        assert SECRET not in shown
        assert error.category == INVALID
