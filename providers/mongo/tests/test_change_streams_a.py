"""Tests rows CS-1 to CS-26 of MongoDB's change stream specification: resumable errors and commands."""

import time
from datetime import UTC, datetime, timedelta

import bson
import pytest
from bson import Int64, ObjectId, Timestamp
from pymongo.change_stream import ChangeStream
from pymongo.errors import ConfigurationError, OperationFailure
from pymongo.read_concern import ReadConcern

from multiclouddb_api import (
    ChangeType,
    Dropped,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    MulticloudDbError,
    NewItemStateMode,
    Renamed,
    ResourceAddress,
)
from multiclouddb_mongo import MongoOptions

from .monitor import Feed, keys, watched
from .old_server import OldServer
from .servers.failpoint import fail_command

RESUMABLE = {"errorLabels": ["ResumableChangeStreamError"]}
CURSOR_NOT_FOUND = 43
FINAL = 8000  # a server error that no driver treats specially
SCOPES = [None, EntireDatabase(), EntireCluster()]


def asked(**options):
    return {"provider_options": MongoOptions(**options)}


def of_scope(scope, here):
    """Return an address and a scope."""
    address = {type(None): here, EntireDatabase: ResourceAddress(here.database)}
    found = {"address": address.get(type(scope), ResourceAddress())}
    return {**found, "scope": scope} if scope else found


def refused(category=ErrorCategory.INVALID_REQUEST, code=None):
    """Check that the server refused the request and that the error contains the server's code."""
    return pytest.raises(
        MulticloudDbError,
        check=lambda error: error.category == category and error.detail.native_code == str(code),
    )


class TestResumable:
    """Tests which errors of a `getMore` cause the stream to be opened again with an `aggregate`."""

    def test_cs_01_an_older_server_is_not_talked_to(self):
        """Only the label of the error decides whether the stream is opened again, even if the server later
        reports a different version.
        """
        with OldServer(8) as server, watched(server.uri) as (client, commands):
            with pytest.raises(MulticloudDbError) as caught:
                Feed(client, ResourceAddress("shop", "orders")).read()
            assert isinstance(caught.value.__cause__, ConfigurationError)
            assert server.greeted
        assert commands.names() == []

    def test_cs_02_a_lost_connection(self, one, app, warm, written):
        feed, commands = warm
        with fail_command(one, commands=["getMore"], app_name=app, closeConnection=True):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        assert commands.ends("getMore")[0] == "failed"
        assert commands.tries() == ["succeeded"]

    def test_cs_02_an_answer_that_does_not_come(self, one, app, here, written):
        slowly = {"blockConnection": True, "blockTimeMS": 4500}
        with watched(one.uri(appName=app, socketTimeoutMS=3000)) as (client, commands):
            feed = Feed(client, here)
            feed.read()
            commands.clear()
            with fail_command(one, commands=["getMore"], app_name=app, **slowly):
                written.insert_one({"_id": 1})
                assert keys(feed.events()) == [1]
            assert commands.tries() == ["succeeded"]

    def test_cs_02_a_date_out_of_range_is_delivered(self, warm, written):
        feed, _ = warm
        far = bson.datetime_ms.DatetimeMS(2**60)
        written.insert_many([{"_id": 1, "when": far}, {"_id": 2}])
        first, second = feed.events(2)
        assert first.new_item_state["when"] == far
        assert keys([second]) == [2]

    def test_cs_03_code_43(self, one, app, warm, written):
        feed, commands = warm
        with fail_command(one, commands=["getMore"], app_name=app, errorCode=CURSOR_NOT_FOUND):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        assert commands.tries() == ["succeeded"]

    def test_cs_03_a_cursor_that_was_killed(self, one, warm, written):
        feed, commands = warm
        feed.read()
        cursor = commands.bodies("getMore")[-1]["getMore"]
        written.database.command({"killCursors": "c", "cursors": [cursor]})
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
        assert commands.tries() == ["succeeded"]

    @pytest.mark.parametrize("code", [6, 63, 234, FINAL])
    def test_cs_04_an_error_with_the_label(self, one, app, warm, written, code):
        feed, commands = warm
        with fail_command(one, commands=["getMore"], app_name=app, errorCode=code, **RESUMABLE):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        assert commands.tries() == ["succeeded"]

    @pytest.mark.parametrize("code", [6, 63, 234, FINAL])
    def test_cs_04_an_error_without_the_label(self, one, app, warm, written, code):
        """After an error without the label `ResumableChangeStreamError`, the stream is not resumed.

        This applies even if the error was resumable on older servers.
        """
        feed, commands = warm
        with (
            fail_command(one, commands=["getMore"], app_name=app, errorCode=code),
            pytest.raises(MulticloudDbError) as caught,
        ):
            feed.read()
        assert caught.value.detail.native_code == str(code)
        assert commands.tries() == []
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]

    def test_cs_06_an_aggregate_is_not_resumed(self, one, app, here, ours):
        """The `aggregate` that opens a stream is never resumed, but it is retried once, like any read."""
        client, commands = ours
        failure = {"errorCode": 6, **RESUMABLE}
        with (
            fail_command(one, commands=["aggregate"], app_name=app, times=None, **failure),
            pytest.raises(MulticloudDbError),
        ):
            Feed(client, here).read()
        assert commands.tries() == ["failed", "failed"]

    def test_cs_06_not_even_with_the_label(self, one, app, here, ours):
        client, commands = ours
        failure = {"errorCode": FINAL, **RESUMABLE}
        with (
            fail_command(one, commands=["aggregate"], app_name=app, times=None, **failure),
            pytest.raises(MulticloudDbError),
        ):
            Feed(client, here).read()
        assert commands.tries() == ["failed"]


class TestEvents:
    """Tests events that the server sends today or may send in the future."""

    def test_cs_07_an_operation_that_nobody_knows_yet(self, ours, here, written):
        """An event with an unknown operation type is skipped.

        The test renames the operation in a server's event.
        """
        client, _ = ours
        strange = {"$cond": ["$fullDocument.strange", "zzz", "$operationType"]}
        feed = Feed(client, here, **asked(pipeline=[{"$addFields": {"operationType": strange}}]))
        before = feed.read().continuation_token
        written.insert_one({"_id": 1, "strange": True})
        until = time.monotonic() + 20
        while (page := feed.read()).continuation_token == before and time.monotonic() < until:
            assert page.events == ()
        written.insert_many([{"_id": 2}, {"_id": 3, "strange": True}, {"_id": 4}])
        assert keys(feed.events(2)) == [2, 4]

    def test_cs_08_further_fields(self, ours, here, written):
        client, _ = ours
        more = {"ns.viewOn": "other", "ns.further": {"a": 1}, "nsType": "collection", "later": [1]}
        feed = Feed(client, here, **asked(pipeline=[{"$addFields": more}]), include_native=True)
        feed.read()
        written.insert_one({"_id": 1})
        (event,) = feed.events()
        assert (event.type, event.key.components) == (ChangeType.CREATE, {"_id": 1})
        assert event.native["ns"] == {
            "db": here.database,
            "coll": "c",
            "viewOn": "other",
            "further": {"a": 1},
        }

    @pytest.mark.parametrize("scope", SCOPES[1:], ids=str)
    def test_cs_08_further_fields_where_ns_is_read(self, ours, here, written, scope):
        client, _ = ours
        feed = Feed(
            client, **of_scope(scope, here), **asked(pipeline=[{"$addFields": {"ns.viewOn": "other"}}])
        )
        feed.read()
        written.insert_one({"_id": 1})
        (event,) = (found for found in feed.events() if found.address == here)
        assert keys([event]) == [1]

    def test_cs_09_the_fields_of_changes(self, ours, here, written):
        client, _ = ours
        feed = Feed(client, here, include_native=True)
        feed.read()
        begin = datetime.now(UTC)
        written.insert_one({"_id": 1, "a": {"b": 1}, "gone": 1})
        written.update_one({"_id": 1}, {"$set": {"a.b": 2}, "$unset": {"gone": ""}})
        written.replace_one({"_id": 1}, {"a": 3})
        written.delete_one({"_id": 1})
        events = feed.events(4)
        insert, update, replace, delete = natives = [event.native for event in events]
        assert [event.type for event in events] == [
            ChangeType.CREATE,
            ChangeType.UPDATE,
            ChangeType.UPDATE,
            ChangeType.DELETE,
        ]
        assert [native["operationType"] for native in natives] == ["insert", "update", "replace", "delete"]
        for event, native in zip(events, natives, strict=True):
            assert native["ns"] == {"db": here.database, "coll": "c"}
            assert native["documentKey"] == event.key.components == {"_id": 1}
            assert event.event_id == native["_id"]["_data"]
            assert isinstance(native["clusterTime"], Timestamp)
            assert event.timestamp == native["wallTime"]
            assert abs(event.timestamp - begin) < timedelta(seconds=20)
        assert insert["fullDocument"] == events[0].new_item_state == {"_id": 1, "a": {"b": 1}, "gone": 1}
        assert replace["fullDocument"] == events[2].new_item_state == {"_id": 1, "a": 3}
        assert update["updateDescription"]["updatedFields"] == {"a.b": 2}
        assert update["updateDescription"]["removedFields"] == ["gone"]
        assert update["updateDescription"]["truncatedArrays"] == []
        assert "fullDocument" not in delete
        assert events[3].new_item_state is None
        assert [set(native) & {"updateDescription"} for native in (insert, replace, delete)] == [set()] * 3

    def test_cs_09_the_document_of_an_update_that_is_gone_is_null(self, ours, here, written):
        """If the document was deleted before the lookup, it is unavailable.

        The event is still an update and not a delete.
        """
        client, _ = ours
        feed = Feed(client, here, include_native=True)
        feed.read()
        written.insert_one({"_id": 1})
        written.update_one({"_id": 1}, {"$set": {"a": 1}})
        written.delete_one({"_id": 1})
        _, update, _ = feed.events(3)
        assert update.native["fullDocument"] is None
        assert (update.type, update.new_item_state) == (ChangeType.UPDATE, None)

    def test_cs_09_renames_and_drops(self, ours, here, written):
        client, _ = ours
        feed = Feed(client, **of_scope(EntireDatabase(), here))
        feed.read()
        written.rename("d")
        written.database["d"].drop()
        notices = []
        while len(notices) < 2:
            notices += feed.read(wait=0.1).notices
        assert notices == [
            Renamed(f"{here.database}/c", f"{here.database}/d"),
            Dropped(f"{here.database}/d"),
        ]

    def test_cs_09_events_of_a_transaction(self, one, ours, here, written):
        client, _ = ours
        feed = Feed(client, here, include_native=True)
        feed.read()
        with one.client().start_session() as session, session.start_transaction():
            written.insert_many([{"_id": 1}, {"_id": 2}], session=session)
        first, second = feed.events(2)
        assert first.native["clusterTime"] == second.native["clusterTime"]
        assert first.native["txnNumber"] == second.native["txnNumber"]
        assert first.event_id < second.event_id


class TestOptions:
    """Tests the options that are sent with the `aggregate`, in its stage, and with every `getMore`."""

    @pytest.mark.parametrize("value", ["unheard-of", ""])
    def test_cs_10_an_unknown_full_document(self, ours, here, value):
        client, commands = ours
        with refused(code=2):
            Feed(client, here, **asked(full_document=value)).read()
        assert commands.streams()[-1]["fullDocument"] == value

    @pytest.mark.parametrize("value", ["default", "updateLookup", "whenAvailable", "required"])
    def test_cs_10_every_known_full_document(self, ours, here, value):
        client, commands = ours
        Feed(client, here, **asked(full_document=value)).read()
        assert {stage["fullDocument"] for stage in commands.streams()} == {value}

    def test_cs_10_none_is_sent_when_no_document_is_wanted(self, ours, here):
        client, commands = ours
        Feed(client, here, new_item_state_mode=NewItemStateMode.OMIT).read()
        assert all("fullDocument" not in stage for stage in commands.streams())

    @pytest.mark.parametrize("value", ["unheard-of", ""])
    def test_cs_11_an_unknown_full_document_before_change(self, ours, here, value):
        client, commands = ours
        with refused(code=2):
            Feed(client, here, **asked(full_document_before_change=value)).read()
        assert commands.streams()[-1]["fullDocumentBeforeChange"] == value

    @pytest.mark.parametrize("value", ["off", "whenAvailable", "required"])
    def test_cs_11_every_known_full_document_before_change(self, ours, here, value):
        client, commands = ours
        Feed(client, here, **asked(full_document_before_change=value)).read()
        assert {stage["fullDocumentBeforeChange"] for stage in commands.streams()} == {value}

    def test_cs_11_none_is_sent_when_no_old_document_is_wanted(self, warm):
        feed, commands = warm
        other = Feed(feed.client, feed.request.address)
        other.read()
        assert commands.streams()
        assert all("fullDocumentBeforeChange" not in stage for stage in commands.streams())

    def test_cs_12_how_long_to_wait_goes_with_getmore_alone(self, ours, here):
        client, commands = ours
        feed = Feed(client, here, **asked(max_await_time_ms=77))
        for _ in range(3):
            feed.read()
        assert {body["maxTimeMS"] for body in commands.bodies("getMore")} == {77}
        for body in commands.bodies("aggregate"):
            text = repr(body)
            assert "maxTimeMS" not in text
            assert "maxAwaitTimeMS" not in text

    def test_cs_12_ours_where_none_is_given(self, warm):
        feed, commands = warm
        feed.read()
        assert {body["maxTimeMS"] for body in commands.bodies("getMore")} == {10}
        feed.read(wait=2.0)
        assert {body["maxTimeMS"] for body in commands.bodies("getMore")} == {10, 500}

    def test_cs_13_a_batch_size_goes_with_both(self, ours, here, written):
        client, commands = ours
        feed = Feed(client, here, **asked(batch_size=3))
        feed.read()
        written.insert_many({"_id": number} for number in range(1, 11))
        assert keys(feed.events(10)) == list(range(1, 11))
        assert commands.opening()[-1].command["cursor"] == {"batchSize": 3}
        assert {body["batchSize"] for body in commands.bodies("getMore")} == {3}

    def test_cs_13_ours_where_none_is_given(self, ours, here):
        client, commands = ours
        feed = Feed(client, here, max_page_size=150)
        for _ in range(2):
            feed.read()
        assert {body["batchSize"] for body in commands.bodies("getMore")} == {150}

    def test_cs_13_the_driver_sends_none_by_itself(self, plain, here, written):
        client, commands = plain
        with client[here.database]["c"].watch() as stream:
            written.insert_one({"_id": 1})
            next(stream)
        assert commands.bodies("aggregate")[0]["cursor"] == {}
        assert all("batchSize" not in body for body in commands.bodies("getMore"))

    def test_cs_14_a_collation(self, ours, here, written):
        client, commands = ours
        collation = {"locale": "en", "strength": 1}
        stages = [{"$match": {"fullDocument.name": "ANNE"}}]
        feed = Feed(client, here, **asked(collation=collation, pipeline=stages))
        feed.read()
        written.insert_many([{"_id": 1, "name": "anne"}, {"_id": 2, "name": "bob"}])
        assert keys(feed.events()) == [1]
        assert all(event.command["collation"] == collation for event in commands.opening())

    def test_cs_14_none_unless_given(self, ours, here):
        client, commands = ours
        Feed(client, here).read()
        assert commands.opening()
        assert all("collation" not in event.command for event in commands.opening())

    def test_cs_14_the_driver_by_itself_drops_it(self, plain, here):
        """The driver drops the collation.

        If this test fails, PyMongo now sends the collation, and `_Collated` can be removed.
        """
        client, commands = plain
        client[here.database]["c"].watch(collation={"locale": "en"}).close()
        assert all("collation" not in event.command for event in commands.opening())

    @pytest.mark.parametrize("name", ["resume_after", "start_after", "start_at_operation_time"])
    def test_cs_15_each_native_start(self, plain, ours, here, written, name):
        native, _ = plain
        with native[here.database]["c"].watch() as stream:
            written.insert_many([{"_id": 1}, {"_id": 2}])
            first, second = next(stream), next(stream)
        value = second["clusterTime"] if name == "start_at_operation_time" else first["_id"]
        client, commands = ours
        feed = Feed(client, here, **asked(**{name: value}))
        assert keys(feed.events()) == [2]
        sent = {
            "resume_after": "resumeAfter",
            "start_after": "startAfter",
            "start_at_operation_time": "startAtOperationTime",
        }
        assert commands.starts()[0] == {sent[name]: value}

    @pytest.mark.parametrize("value", [True, None])
    def test_cs_15_expanded_events(self, ours, here, written, value):
        client, commands = ours
        feed = Feed(client, here, **asked(show_expanded_events=value), include_native=True)
        feed.read()
        written.create_index("name")  # a separate event that is not a change of a document
        written.insert_one({"_id": 1})
        (event,) = feed.events()
        assert ("collectionUUID" in event.native) is bool(value)
        assert {stage.get("showExpandedEvents") for stage in commands.streams()} == {value}

    @pytest.mark.parametrize(
        "comment", ["text", {"who": "us", "number": Int64(1)}, ObjectId()], ids=["text", "document", "id"]
    )
    def test_cs_16_a_comment_goes_with_both(self, ours, here, comment):
        client, commands = ours
        feed = Feed(client, here, **asked(comment=comment))
        for _ in range(3):
            feed.read()
        sent = commands.bodies("getMore") + [event.command for event in commands.opening()]
        assert commands.bodies("getMore")
        assert all(body["comment"] == comment for body in sent)

    def test_cs_16_ours_where_none_is_given(self, warm):
        feed, commands = warm
        feed.read()
        assert {body["comment"] for body in commands.bodies("getMore")} == {"multiclouddb"}

    def test_cs_16_the_driver_sends_none_by_itself(self, plain, here):
        client, commands = plain
        with client[here.database]["c"].watch(max_await_time_ms=1) as stream:
            stream.try_next()
        assert all(
            "comment" not in body for body in commands.bodies("aggregate") + commands.bodies("getMore")
        )


class TestHelpers:
    """Tests which command each kind of watch sends: on a collection, a database or the deployment."""

    @pytest.mark.parametrize("scope", SCOPES, ids=str)
    def test_cs_17_each_scope_is_a_change_stream(self, plain, ours, here, written, scope):
        native, _ = plain
        target = {None: native[here.database]["c"], EntireDatabase(): native[here.database]}
        with target.get(scope, native).watch() as stream:
            assert isinstance(stream, ChangeStream)
        client, _ = ours
        feed = Feed(client, **of_scope(scope, here))
        feed.read()
        written.insert_one({"_id": 1})
        events = []
        while here not in [event.address for event in events]:
            events += feed.read(wait=5).events
        assert keys(event for event in events if event.address == here) == [1]

    @pytest.mark.parametrize("scope", SCOPES, ids=str)
    def test_cs_19_the_stage_comes_first(self, ours, here, scope):
        client, commands = ours
        feed = Feed(client, **of_scope(scope, here), **asked(pipeline=[{"$match": {"a": 1}}]))
        feed.read()
        pipelines = [body["pipeline"] for body in commands.bodies("aggregate")]
        assert pipelines
        for first, *others in pipelines:
            assert list(first) == ["$changeStream"]
            assert not any("$changeStream" in stage for stage in others)

    def test_cs_19_a_second_one_is_left_to_the_server(self, ours, here):
        client, commands = ours
        with refused(code=40602):
            Feed(client, here, **asked(pipeline=[{"$changeStream": {}}])).read()
        assert commands.opening()

    @pytest.mark.parametrize("level", ["local", "linearizable", "available", "snapshot"])
    @pytest.mark.parametrize("scope", SCOPES, ids=str)
    def test_cs_20_a_client_with_another_read_concern_reads(self, one, app, here, written, scope, level):
        with watched(one.uri(appName=app, readConcernLevel=level)) as (client, commands):
            feed = Feed(client, **of_scope(scope, here))
            feed.read()
            written.insert_one({"_id": 1})
            assert 1 in keys(feed.events())
        levels = {event.command.get("readConcern", {}).get("level") for event in commands.opening()}
        assert levels == {"majority"}

    def test_cs_20_the_driver_leaves_it_to_the_server(self, plain, here):
        client, commands = plain
        collection = client[here.database].get_collection("c", read_concern=ReadConcern("local"))
        with pytest.raises(OperationFailure) as caught:
            collection.watch()
        assert caught.value.code == 72
        assert commands.tries() == ["failed"]

    def test_cs_21_stages_are_appended_in_their_order(self, ours, here, written):
        client, commands = ours
        stages = [
            {"$match": {"operationType": "insert"}},
            {"$addFields": {"fullDocument.more": 1}},
            {"$project": {"fullDocument.secret": 0}},
        ]
        feed = Feed(client, here, **asked(pipeline=stages))
        feed.read()
        written.insert_one({"_id": 1, "secret": "x"})
        written.delete_one({"_id": 1})
        written.insert_one({"_id": 2, "secret": "x"})
        events = feed.events(2)
        assert [event.new_item_state for event in events] == [{"_id": 1, "more": 1}, {"_id": 2, "more": 1}]
        for event in commands.opening():
            sent = event.command["pipeline"][1:]
            places = [sent.index(stage) for stage in stages]
            assert places == sorted(places)

    def test_cs_21_there_may_be_none(self, ours, here, written):
        client, _ = ours
        feed = Feed(client, here, **asked(pipeline=[]))
        feed.read()
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]

    @pytest.mark.parametrize(
        ("stage", "code"),
        [({"$group": {"_id": 1}}, 20), ({"$sort": {"a": 1}}, 20), ({"$unheardOf": 1}, 40324)],
        ids=["group", "sort", "unheard of"],
    )
    def test_cs_22_a_stage_that_streams_do_not_have(self, ours, here, stage, code):
        client, commands = ours
        with refused(code=code):
            Feed(client, here, **asked(pipeline=[stage])).read()
        assert commands.opening()

    @pytest.mark.parametrize(
        "stage",
        [
            {"$project": {"clusterTime": 0, "updateDescription": 0}},
            {"$project": {"wallTime": 0}},
            {"$project": {"operationType": 1, "ns": 1, "documentKey": 1, "fullDocument": 1, "wallTime": 1}},
            {"$replaceRoot": {"newRoot": {"$mergeObjects": ["$$ROOT", {"more": 1}]}}},
            {"$redact": "$$KEEP"},
        ],
        ids=["no cluster time", "no wall time", "some", "replaced", "redacted"],
    )
    def test_cs_23_another_shape_is_taken(self, ours, here, written, stage):
        client, _ = ours
        feed = Feed(client, here, **asked(pipeline=[stage]))
        feed.read()
        written.insert_one({"_id": 1, "a": 1})
        (event,) = feed.events()
        assert (event.key.components, event.new_item_state) == ({"_id": 1}, {"_id": 1, "a": 1})

    @pytest.mark.parametrize(
        "stage",
        [{"$project": {"_id": 0}}, {"$addFields": {"_id": "mine"}}, {"$replaceRoot": {"newRoot": {"a": 1}}}],
        ids=["removed", "altered", "replaced"],
    )
    def test_cs_23_without_its_token_the_server_refuses_an_event(self, ours, here, written, stage):
        client, commands = ours
        feed = Feed(client, here, **asked(pipeline=[stage]))
        feed.read()
        written.insert_one({"_id": 1})
        with refused(code=280):
            feed.events()
        assert commands.ends("getMore")[-1] == "failed"

    def test_cs_24_a_raw_aggregate_is_a_tailable_cursor_and_no_more(self, one, app, plain, here, written):
        client, commands = plain
        collection = client[here.database]["c"]
        with collection.aggregate([{"$changeStream": {}}], maxAwaitTimeMS=20) as cursor:
            assert cursor.try_next() is None
            written.insert_one({"_id": 1})
            found = None
            while found is None:
                found = cursor.try_next()
            assert found["documentKey"] == {"_id": 1}
            assert commands.bodies("getMore")[0]["maxTimeMS"] == 20
            with (
                fail_command(one, commands=["getMore"], app_name=app, errorCode=6, **RESUMABLE),
                pytest.raises(OperationFailure),
            ):
                cursor.try_next()
        assert commands.tries() == ["succeeded"]

    def test_cs_24_through_run_cursor_command(self, ours, here, written):
        client, commands = ours
        command = {"aggregate": "c", "pipeline": [{"$changeStream": {}}], "cursor": {}}
        with client.run_cursor_command(
            here.database, command, cursor_type="tailable_await", max_time_ms=50
        ) as cursor:
            written.insert_one({"_id": 1})
            assert next(cursor)["documentKey"] == {"_id": 1}
        assert {body["maxTimeMS"] for body in commands.bodies("getMore")} == {50}

    def test_cs_25_the_stream_of_a_database(self, ours, here, written):
        client, commands = ours
        feed = Feed(client, **of_scope(EntireDatabase(), here))
        feed.read()
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
        for event in commands.opening():
            assert (event.database_name, event.command["aggregate"]) == (here.database, 1)
        assert {body["collection"] for body in commands.bodies("getMore")} == {"$cmd.aggregate"}

    def test_cs_26_the_stream_of_a_cluster(self, ours, here, written):
        client, commands = ours
        feed = Feed(client, **of_scope(EntireCluster(), here))
        feed.read()
        written.insert_one({"_id": 1})
        assert 1 in keys(event for event in feed.events() if event.address == here)
        for event in commands.opening():
            assert (event.database_name, event.command["aggregate"]) == ("admin", 1)
            assert event.command["pipeline"][0]["$changeStream"]["allChangesForCluster"] is True
        assert {body["collection"] for body in commands.bodies("getMore")} == {"$cmd.aggregate"}
        assert {body["$db"] for body in commands.bodies("getMore")} == {"admin"}
