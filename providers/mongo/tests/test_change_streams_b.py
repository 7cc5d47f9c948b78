"""Tests rows CS-27 to CS-52 of MongoDB's change stream specification: how a stream lives and is resumed."""

import contextlib
import inspect
import itertools
import time
from unittest import mock

import pytest
from bson import Timestamp
from pymongo.change_stream import ChangeStream
from pymongo.collection import Collection
from pymongo.errors import InvalidOperation, OperationFailure
from pymongo.synchronous.command_cursor import CommandCursor

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    MulticloudDbError,
    Now,
    OldItemStateMode,
    ResourceAddress,
)
from multiclouddb_conformance.waiting import assert_prompt, wait_until
from multiclouddb_mongo import MongoOptions

from .monitor import PATIENCE, Feed, keys, patient, watched
from .servers.failpoint import fail_command
from .standalone import standalone

RESUMABLE = {"errorLabels": ["ResumableChangeStreamError"]}
FINAL = 8000  # a server error that no driver treats specially


@pytest.fixture
def breaks(one, app):
    """Make commands fail that this test's client sends."""

    def breaking(*names, times=1, **failure):
        return fail_command(one, commands=list(names), app_name=app, times=times, **failure)

    return breaking


def asked(**options):
    return {"provider_options": MongoOptions(**options)}


def open_cursors(server, address):
    """Return the open cursors of one collection. Only one test uses this collection."""
    here = {"$match": {"ns": f"{address.database}.{address.collection}", "cursor": {"$exists": True}}}
    return len(list(server.client().admin.aggregate([{"$currentOp": {"idleCursors": True}}, here])))


def replies(commands, *names):
    """Return the cursor of each answer."""
    return [event.reply["cursor"] for event in commands.events("succeeded", *names)]


class TestLife:
    """Tests closing, iterating, and the token of a stream."""

    def test_cs_27_a_client_that_is_closed_leaves_no_cursor(self, one, app, here):
        with watched(one.uri(appName=app)) as (client, _):
            feeds = [Feed(client, here) for _ in range(3)]
            for feed in feeds:
                feed.read()
            assert open_cursors(one, here)
        wait_until(lambda: not open_cursors(one, here))

    def test_cs_27_also_where_the_application_brought_its_client(self, plain, here):
        native, commands = plain
        with watched("mongodb://unused", native_client=native) as (client, _):
            Feed(client, here).read()
            cursor = commands.bodies("getMore")[-1]["getMore"]
        killed = [number for body in commands.bodies("killCursors") for number in body["cursors"]]
        assert cursor in killed
        assert native.admin.command("ping")["ok"]

    def test_cs_27_an_iterator_that_is_closed_can_be_followed_by_another(self, warm, written):
        feed, _ = warm
        for number in (1, 2):
            written.insert_one({"_id": number})
            with feed.client.iterate_changes(feed.request) as changes:
                assert keys(itertools.islice(changes, number)) == [1, 2][:number]

    def test_cs_27_a_stream_of_the_driver_is_closed(self, plain, here):
        client, commands = plain
        with client[here.database]["c"].watch() as stream:
            pass
        assert not stream.alive
        assert commands.ends("killCursors") == ["succeeded"]

    def test_cs_28_a_feed_is_iterated(self, warm, written):
        feed, _ = warm
        written.insert_many({"_id": number} for number in range(1, 6))
        with feed.client.iterate_changes(feed.request) as changes:
            assert keys(itertools.islice(changes, 5)) == [1, 2, 3, 4, 5]

    def test_cs_28_a_stream_of_the_driver_is_iterated(self, plain, here, written):
        client, _ = plain
        with client[here.database]["c"].watch() as stream:
            written.insert_many([{"_id": 1}, {"_id": 2}])
            found = [change["documentKey"]["_id"] for change in itertools.islice(stream, 2)]
        assert found == [1, 2]

    def test_cs_29_every_token_continues_right_after_its_page(self, one, app, ours, here, written):
        client, _ = ours
        feed = Feed(client, here, max_page_size=1)
        feed.read()
        written.insert_many({"_id": number} for number in range(1, 5))
        for number in range(1, 5):
            assert keys(feed.events()) == [number]
            with watched(one.uri(appName=app)) as (other, _):
                rest = list(range(number + 1, 5))
                assert keys(feed.by(other).events(len(rest))) == rest

    def test_cs_30_the_server_refuses_a_missing_token_and_ends_the_stream(self, plain, here, written):
        client, commands = plain
        with client[here.database]["c"].watch([{"$project": {"_id": 0}}]) as stream:
            written.insert_one({"_id": 1})
            with pytest.raises(OperationFailure) as caught:
                next(stream)
            assert caught.value.code == 280
            assert not stream.alive
        assert commands.tries() == ["succeeded"]

    def test_cs_30_so_would_the_driver(self, plain, here):
        """The test simulates a change without a token, because MongoDB 6.0 refuses to send one."""
        client, _ = plain
        nameless = {"operationType": "insert"}
        with client[here.database]["c"].watch() as stream:
            with (
                mock.patch.object(CommandCursor, "_try_next", return_value=nameless),
                pytest.raises(InvalidOperation, match="when the resume token is missing"),
            ):
                next(stream)
            assert not stream.alive

    def test_cs_31_one_resume_for_one_error(self, breaks, warm, written):
        feed, commands = warm
        with breaks("getMore", errorCode=6, **RESUMABLE):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        assert commands.tries() == ["succeeded"]

    def test_cs_31_none_for_another_error(self, breaks, warm):
        feed, commands = warm
        with breaks("getMore", errorCode=FINAL), pytest.raises(MulticloudDbError):
            feed.read()
        assert commands.ends("getMore") == ["failed"]
        assert commands.tries() == []

    def test_cs_31_a_resume_that_fails_is_not_repeated(self, breaks, warm, written):
        """The `aggregate` is sent twice, because it is retried once, like any read.

        The next call continues from the same token.
        """
        feed, commands = warm
        with breaks("getMore", "aggregate", times=None, errorCode=6, **RESUMABLE):
            with pytest.raises(MulticloudDbError) as caught:
                feed.read()
            assert caught.value.detail.retryable
            assert commands.ends("getMore") == ["failed"]
            assert commands.tries() == ["failed", "failed"]
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]

    def test_cs_31_a_resume_whose_retry_works(self, breaks, warm, written):
        feed, commands = warm
        with breaks("getMore", "aggregate", times=2, errorCode=6, **RESUMABLE):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        assert commands.tries() == ["failed", "succeeded"]

    @pytest.mark.parametrize(
        "failure", [{"errorCode": 43}, {"errorCode": 6, **RESUMABLE}, {"closeConnection": True}], ids=str
    )
    def test_cs_31_a_getmore_that_always_fails_is_not_resumed_without_end(
        self, breaks, warm, written, failure
    ):
        feed, commands = warm
        with breaks("getMore", times=None, **failure):
            with contextlib.suppress(MulticloudDbError):
                assert not feed.read(seconds=3).idle
            assert len(commands.tries()) <= 5
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]

    @pytest.mark.parametrize("preference", ["secondary", "primary"])
    def test_cs_32_the_read_preference_is_kept(self, three, app, database, preference):
        collection = three.client()[database]["c"]
        collection.insert_one({"_id": 0})
        nodes = {member: three.direct(member).admin.command("hello") for member in three.members}
        allowed = {
            member for member, said in nodes.items() if said["isWritablePrimary"] is (preference == "primary")
        }
        uri = three.uri(appName=app, readPreference=preference)
        with watched(uri) as (client, commands):
            # The member that received the first request may not know the collection yet.
            wait_until(
                lambda: all("c" in three.direct(m)[database].list_collection_names() for m in three.members)
            )
            feed = Feed(client, ResourceAddress(database, "c"))
            feed.read()
            with fail_command(three, commands=["getMore"], app_name=app, closeConnection=True):
                collection.insert_one({"_id": 1})
                assert keys(feed.events()) == [1]
            # The request for the oplog's first entry goes to the same member, because oplogs differ in
            # length.
            assert len(Feed(client, ResourceAddress(database, "c"), Beginning()).events(2)) == 2
            opened = commands.opening()
            assert "failed" in commands.ends("getMore")
            assert {f"{host}:{port}" for host, port in (event.connection_id for event in opened)} <= allowed
            assert {event.command.get("$readPreference", {}).get("mode", "primary") for event in opened} == {
                preference
            }

    def test_cs_33_a_server_that_is_no_replica_set(self, tmp_path):
        with standalone(tmp_path) as uri, watched(uri) as (client, commands):
            client.run_command("shop", {"create": "orders"})
            with pytest.raises(MulticloudDbError, match="replica set") as caught:
                Feed(client, ResourceAddress("shop", "orders")).read()
            assert caught.value.category == ErrorCategory.UNSUPPORTED_CAPABILITY
            assert caught.value.detail.native_code == "40573"  # the server's own token
            assert commands.tries() == ["failed"]


class TestStarts:
    """Tests the start options when a stream is opened and when it is resumed."""

    def test_cs_34_a_raw_timestamp(self, ours, here, written):
        client, commands = ours
        answer = written.database.command("ping")
        stamp = answer["operationTime"]
        written.insert_one({"_id": 1})
        begin = Timestamp(stamp.time, stamp.inc + 1)
        feed = Feed(client, here, **asked(start_at_operation_time=begin))
        assert keys(feed.events()) == [1]
        assert commands.starts()[0] == {"startAtOperationTime": begin}

    @pytest.mark.parametrize("value", [1, "now"])
    def test_cs_34_the_driver_leaves_another_type_to_the_server(self, plain, here, value):
        client, commands = plain
        with pytest.raises(OperationFailure) as caught:
            client[here.database]["c"].watch(start_at_operation_time=value)
        assert caught.value.code == 14
        assert commands.tries() == ["failed"]

    @pytest.mark.parametrize(
        "names", list(itertools.combinations(["resume_after", "start_after", "start_at_operation_time"], 2))
    )
    def test_cs_35_two_starts_are_refused(self, names):
        values = {
            "resume_after": {"_data": "82"},
            "start_after": {"_data": "82"},
            "start_at_operation_time": Timestamp(1, 1),
        }
        with pytest.raises(MulticloudDbError) as caught:
            MongoOptions(**{name: values[name] for name in names})
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    def test_cs_35_every_stream_of_a_feed_has_one_at_most(self, breaks, ours, here, written):
        client, commands = ours
        feed = Feed(client, here, Beginning())
        feed.events(1)
        with breaks("getMore", closeConnection=True):
            feed.read()
        feed.read(wait=0.1)
        assert {len(start) for start in commands.starts()} == {1}

    def test_cs_35_the_driver_by_itself_drops_all_but_one(self, plain, here, written):
        """The driver sends only one of several start options.

        If this test fails, PyMongo behaves differently now, and the page on the specifications must be
        changed.
        """
        client, commands = plain
        collection = client[here.database]["c"]
        with collection.watch() as stream:
            token, stamp = stream.resume_token, written.database.command("ping")["operationTime"]
        commands.clear()
        collection.watch(start_after=token, resume_after=token, start_at_operation_time=stamp).close()
        assert commands.starts() == [{"startAfter": token}]

    def test_cs_36_the_time_of_the_first_answer_is_kept(self, breaks, plain, here, written):
        """The time of the first answer is kept if a (simulated) server sends no `postBatchResumeToken`."""
        client, commands = plain
        with tokenless(), client[here.database]["c"].watch(max_await_time_ms=20) as stream:
            kept = commands.events("succeeded", "aggregate")[0].reply["operationTime"]
            assert stream.resume_token is None
            with breaks("getMore", closeConnection=True):
                written.insert_one({"_id": 1})
                while next(stream)["documentKey"] != {"_id": 1}:
                    pass  # at that time, too
        assert len(commands.streams()) == 2
        assert commands.starts() == [{"startAtOperationTime": kept}]

    def test_cs_37_before_its_first_document_it_keeps_startafter(self, breaks, plain, ours, here, written):
        token = invalidated(plain[0], written)
        client, commands = ours
        feed = Feed(client, here, **asked(start_after=token))
        with breaks("getMore", closeConnection=True):
            feed.read()
        first, second, *_ = commands.starts()
        assert first == {"startAfter": token}
        assert set(second) == {"startAfter"}
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]

    def test_cs_38_after_a_document_it_uses_resumeafter(self, breaks, plain, ours, here, written):
        token = invalidated(plain[0], written)
        client, commands = ours
        feed = Feed(client, here, **asked(start_after=token))
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
        commands.clear()
        with breaks("getMore", closeConnection=True):
            feed.read()
        assert commands.starts()
        assert all(set(start) == {"resumeAfter"} for start in commands.starts())

    def test_cs_38_a_stream_from_a_time_uses_resumeafter_too(self, breaks, ours, here, written):
        client, commands = ours
        feed = Feed(client, here, Beginning())
        feed.events(1)
        assert set(commands.starts()[0]) == {"startAtOperationTime"}
        commands.clear()
        with breaks("getMore", closeConnection=True):
            feed.read()
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
        assert commands.starts()
        assert all(set(start) == {"resumeAfter"} for start in commands.starts())

    def test_cs_39_without_a_token_the_given_time_is_used(self, breaks, plain, here, written):
        client, commands = plain
        stamp = written.database.command("ping")["operationTime"]
        stamp = Timestamp(stamp.time, stamp.inc + 1)
        with (
            tokenless(),
            client[here.database]["c"].watch(start_at_operation_time=stamp, max_await_time_ms=20) as stream,
            breaks("getMore", closeConnection=True),
        ):
            written.insert_one({"_id": 1})
            assert next(stream)["documentKey"] == {"_id": 1}
        assert commands.starts() == [{"startAtOperationTime": stamp}] * 2

    def test_cs_39_without_a_time_either_the_original_command(self, breaks, plain, here):
        client, commands = plain
        with tokenless(), client[here.database]["c"].watch(max_await_time_ms=20) as stream:
            stream._start_at_operation_time = None
            with breaks("getMore", closeConnection=True):
                assert stream.try_next() is None
        first, second = (event.command["pipeline"] for event in commands.opening())
        assert first == second

    @pytest.mark.parametrize(
        "failure",
        [{"closeConnection": True}, {"errorCode": 6, **RESUMABLE}],
        ids=["lost", "code 6"],
    )
    def test_cs_40_a_given_session_is_kept(self, breaks, plain, here, failure):
        client, commands = plain
        with (
            client.start_session() as session,
            client[here.database]["c"].watch(session=session, max_await_time_ms=20) as stream,
            breaks("getMore", **failure),
        ):
            stream.try_next()
            assert [event.command["lsid"] for event in commands.opening()] == [session.session_id] * 2

    def test_cs_40_an_implicit_session_is_kept_after_an_error_of_the_server(self, breaks, warm):
        feed, commands = warm
        with breaks("getMore", errorCode=6, **RESUMABLE):
            feed.read()
        (event,) = commands.opening()
        assert event.command["lsid"] == commands.bodies("getMore")[0]["lsid"]

    def test_cs_40_a_lost_connection_takes_another_implicit_one(self, breaks, warm, written):
        """After a lost connection, the driver uses another implicit session, which does no harm.

        If this test fails, PyMongo now behaves differently.
        """
        feed, commands = warm
        with breaks("getMore", closeConnection=True):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        (event,) = commands.opening()
        assert event.command["lsid"] != commands.bodies("getMore")[0]["lsid"]


def invalidated(client, collection):
    """Drop and recreate a collection, and return the token of the invalidate event between them."""
    with client[collection.database.name][collection.name].watch() as stream:
        collection.drop()
        collection.database.create_collection(collection.name)
        drop, invalidate = stream
    assert (drop["operationType"], invalidate["operationType"]) == ("drop", "invalidate")
    return invalidate["_id"]


def tokenless():
    """Remove `postBatchResumeToken` from answers, as if the server were older than 4.0.7."""
    first = ChangeStream._process_result

    def processed(stream, result, *others):
        result["cursor"].pop("postBatchResumeToken", None)
        return first(stream, result, *others)

    return mock.patch.object(ChangeStream, "_process_result", processed)


class TestResume:
    """Tests how often a stream is resumed, and what happens to the old cursor."""

    def test_cs_41_resumes_follow_each_other_without_an_event(self, breaks, warm, written):
        feed, commands = warm
        with breaks("getMore", times=3, closeConnection=True):
            for _ in range(3):
                feed.read()
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
        assert commands.tries() == ["succeeded"] * 3

    def test_cs_42_the_old_cursor_is_killed_where_it_is(self, breaks, warm):
        feed, commands = warm
        with breaks("getMore", errorCode=6, **RESUMABLE):
            feed.read()
        broken = commands.sent("getMore")[0]
        (kill,) = commands.sent("killCursors")
        assert kill.command["cursors"] == [broken.command["getMore"]]
        assert kill.connection_id == broken.connection_id
        assert commands.names("killCursors", "aggregate") == ["killCursors", "aggregate"]

    def test_cs_42_one_that_is_gone_is_not(self, breaks, warm):
        feed, commands = warm
        with breaks("getMore", errorCode=43):
            feed.read()
        assert commands.tries() == ["succeeded"]
        assert commands.names("killCursors") == []

    def test_cs_42_after_a_lost_connection_the_driver_does_not_try(self, one, breaks, warm):
        """After a lost connection, the driver does not close the old cursor, and the server ends it.

        If this test fails, PyMongo now behaves differently, and the row in the table is wrong.
        """
        feed, commands = warm
        feed.read()
        (old,) = {body["getMore"] for body in commands.bodies("getMore")}
        commands.clear()
        with breaks("getMore", closeConnection=True):
            feed.read()
        assert commands.tries() == ["succeeded"]
        assert commands.names("killCursors") == []
        idle = one.client().admin.aggregate([{"$currentOp": {"idleCursors": True, "allUsers": True}}])
        assert old in [found["cursor"]["cursorId"] for found in idle if "cursor" in found]

    @pytest.mark.parametrize(
        "failure", [{"errorCode": 6, **RESUMABLE}, {"errorCode": FINAL, **RESUMABLE}], ids=["6", "8000"]
    )
    def test_cs_42_failing_to_kill_it_is_no_failure(self, breaks, warm, written, failure):
        feed, commands = warm
        with breaks("getMore", "killCursors", times=2, **failure):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        assert commands.ends("killCursors") == ["failed"]


class TestTokens:
    """Tests which token is the last token of a stream."""

    def test_cs_43_every_page_has_one_and_an_empty_page_a_newer_one(self, warm, written):
        feed, _ = warm
        tokens = set()
        for number in range(3):
            written.database["other"].insert_one({"_id": number})
            seen = len(tokens)
            until = time.monotonic() + PATIENCE
            while len(tokens) == seen and time.monotonic() < until:
                page = feed.read()
                assert page.events == ()
                tokens.add(page.continuation_token)
        assert len(tokens) >= 3

    def test_cs_44_a_token_is_taken_from_the_page(self, ours, here):
        client, _ = ours
        page = client.read_changes(ChangeFeedRequest(here, Now()))
        assert isinstance(page.continuation_token, str)
        assert isinstance(inspect.getattr_static(ChangeStream, "resume_token"), property)
        for ask in (Collection.watch, client.read_changes):
            assert not [name for name in inspect.signature(ask).parameters if "callback" in name]

    @pytest.mark.parametrize("name", ["start_after", "resume_after"])
    def test_cs_45_at_the_start_it_is_the_given_one(self, plain, here, written, name):
        client, _ = plain
        collection = client[here.database]["c"]
        with collection.watch() as stream:
            written.insert_many([{"_id": 1}, {"_id": 2}])
            token = next(stream)["_id"]
        with collection.watch(**{name: token}) as stream:
            assert stream.resume_token == token
            assert next(stream)["documentKey"] == {"_id": 2}

    def test_cs_45_or_none(self, plain, here, written):
        client, _ = plain
        stamp = written.database.command("ping")["operationTime"]
        written.insert_one({"_id": 1})
        after = Timestamp(stamp.time, stamp.inc + 1)
        with client[here.database]["c"].watch(start_at_operation_time=after) as stream:
            assert stream.resume_token is None
            assert stream.next()["documentKey"] == {"_id": 1}

    def test_cs_46_after_an_empty_answer_it_is_the_one_of_the_answer(self, one, app, warm, written):
        feed, commands = warm
        feed.read()
        before = token_of(replies(commands, "getMore")[-1])
        written.database["other"].insert_one({"_id": 1})
        wait_until(lambda: feed.read() and token_of(replies(commands, "getMore")[-1]) > before)
        last = replies(commands, "getMore")[-1]
        assert list(last["nextBatch"]) == []
        with watched(one.uri(appName=app)) as (other, seen):
            feed.by(other).read()
            assert seen.starts()[0] == {"resumeAfter": {"_data": token_of(last)}}

    def test_cs_47_after_a_document_it_is_its_own(self, one, app, ours, here, written):
        client, _ = ours
        feed = Feed(client, here, max_page_size=2, include_native=True)
        feed.read()
        written.insert_many({"_id": number} for number in range(1, 4))
        _, second = feed.events(2)
        with watched(one.uri(appName=app)) as (other, seen):
            again = feed.by(other)
            assert keys(again.events()) == [3]
            assert seen.starts()[0] == {"resumeAfter": {"_data": second.event_id}}

    def test_cs_47_after_the_last_document_it_is_the_one_of_the_answer(self, plain, here, written):
        client, commands = plain
        written.insert_one({"_id": 1})
        with client[here.database]["c"].watch(max_await_time_ms=500) as stream:
            written.insert_many([{"_id": 2}, {"_id": 3}])
            written.database["other"].insert_one({"_id": 1})
            first = next(stream)
            assert stream.resume_token == first["_id"]
            next(stream)
            assert stream.resume_token == replies(commands, "getMore")[-1]["postBatchResumeToken"]

    def test_cs_47_a_page_continues_after_the_answer_that_it_came_with(self, one, app, warm, written):
        feed, commands = warm
        numbers = itertools.count(1)

        def farther():
            """Change an answer so that its position is later than its last change."""
            number = next(numbers)
            written.insert_one({"_id": number})
            written.database["other"].insert_one({"_id": number})
            (event,) = feed.events()
            return token_of(replies(commands, "getMore")[-1]) > event.event_id

        wait_until(farther)
        last = token_of(replies(commands, "getMore")[-1])
        with watched(one.uri(appName=app)) as (other, seen):
            feed.by(other).read()
            assert seen.starts()[0] == {"resumeAfter": {"_data": last}}

    def test_cs_48_a_read_without_an_event_returns_soon(self, warm, written):
        feed, _ = warm
        tokens = set()

        def attempt():
            written.database["other"].insert_one({})
            begin = time.monotonic()
            page = feed.read()
            took = time.monotonic() - begin
            assert page.events == ()
            tokens.add(page.continuation_token)
            return took

        for _ in range(5):
            assert_prompt(0.5, attempt, at_most=10)
        assert len(tokens) > 1

    def test_cs_48_one_that_waits_returns_with_the_first_event(self, warm, written):
        feed, _ = warm
        written.insert_one({"_id": 1})
        begin = time.monotonic()
        assert keys(feed.read(wait=20).events) == [1]
        assert time.monotonic() - begin < 10


def token_of(answer):
    return answer["postBatchResumeToken"]["_data"]


class TestPages:
    """Tests every token that a stream returns."""

    def test_cs_49_an_iterator_gives_every_token(self, warm, written):
        """The pages of the iterator show every token, and there are also pages without events."""
        feed, _ = warm
        tokens = set()
        settings = {"idle_backoff_seconds": 0.01, "max_idle_backoff_seconds": 0.02}
        with feed.client.iterate_changes(feed.request, **settings) as changes:
            until = time.monotonic() + PATIENCE
            for page in changes.pages():
                assert page.events == ()
                tokens.add(page.continuation_token)
                if len(tokens) > 3 or time.monotonic() > until:
                    break
                written.database["other"].insert_one({})
        assert len(tokens) > 3


class TestLimits:
    """Tests the limits on time and size."""

    def gives_up_in_time(self, read):
        """Check that the call ends before the server answers. Each answer takes 2.5 seconds."""

        def attempt():
            begin = time.monotonic()
            with pytest.raises(MulticloudDbError) as caught:
                read()
            assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
            return time.monotonic() - begin

        assert_prompt(2.2, attempt, at_most=10)

    def test_cs_50_opening_ends_with_the_timeout_of_the_client(self, one, app, breaks, here):
        slowly = {"blockConnection": True, "blockTimeMS": 2500}
        with (
            watched(one.uri(appName=app, timeoutMS=1000)) as (client, _),
            breaks("aggregate", times=None, **slowly),
        ):
            self.gives_up_in_time(Feed(client, here).read)

    def test_cs_50_iterating_ends_with_it_and_loses_nothing(self, one, app, breaks, here, written):
        slowly = {"blockConnection": True, "blockTimeMS": 2500}
        with watched(one.uri(appName=app, timeoutMS=1000)) as (client, _):
            feed = Feed(client, here)
            patient(feed.read)
            written.insert_one({"_id": 1})
            with breaks("getMore", "aggregate", times=None, **slowly):
                self.gives_up_in_time(feed.read)
            assert keys(patient(feed.events)) == [1]

    def test_cs_50_a_wait_that_is_longer_than_the_timeout_is_no_failure(self, one, app, here, written):
        with watched(one.uri(appName=app, timeoutMS=1000)) as (client, _):

            def waited():
                """Wait three times: opening the stream again could hide one failure, but not two in a row."""
                feed = Feed(client, here, **asked(max_await_time_ms=10_000))
                for _ in range(3):
                    assert feed.read(wait=1).events == ()
                return feed

            feed = patient(waited)
            written.insert_one({"_id": 1})
            assert keys(patient(feed.events)) == [1]

    def test_cs_50_a_call_ends_with_its_own_timeout(self, breaks, ours, here):
        client, _ = ours
        slowly = {"blockConnection": True, "blockTimeMS": 2500}
        with breaks("aggregate", times=None, **slowly):
            self.gives_up_in_time(lambda: Feed(client, here).read(seconds=1))

    def test_cs_51_a_larger_event_is_an_error_that_can_be_skipped(self, one, ours, here):
        database = one.client()[here.database]
        database.create_collection("large", changeStreamPreAndPostImages={"enabled": True})
        client, commands = ours
        feed = Feed(
            client,
            ResourceAddress(here.database, "large"),
            old_item_state_mode=OldItemStateMode.REQUIRE,
        )
        feed.read()
        database["large"].insert_one({"_id": 1, "text": "x" * (9 << 20)})
        database["large"].replace_one({"_id": 1}, {"text": "y" * (9 << 20)})
        database["large"].insert_one({"_id": 2})
        assert keys(feed.events()) == [1]
        with pytest.raises(MulticloudDbError) as caught:
            feed.events()
        assert caught.value.category == ErrorCategory.PROVIDER_ERROR
        assert 10334 in [event.failure.get("code") for event in commands.events("failed")]
        feed.request = ChangeFeedRequest(
            feed.request.address,
            type(feed.request.start_position)(caught.value.detail.skip_token),
            old_item_state_mode=OldItemStateMode.REQUIRE,
        )
        assert keys(feed.events()) == [2]

    def test_cs_51_without_the_old_document_it_fits(self, one, ours, here):
        database = one.client()[here.database]
        database.create_collection("large", changeStreamPreAndPostImages={"enabled": True})
        client, _ = ours
        feed = Feed(client, ResourceAddress(here.database, "large"))
        feed.read()
        database["large"].insert_one({"_id": 1, "text": "x" * (9 << 20)})
        database["large"].update_one({"_id": 1}, {"$set": {"text": "y" * (9 << 20)}})
        first, second = feed.events(2)
        assert (first.new_item_state["text"][0], second.new_item_state["text"][0]) == ("x", "y")


class TestProse:
    """Runs the prose tests of the specification through `read_changes`.

    The numbers of the tests are the numbers in the specification.
    """

    def test_cs_52_prose_1_the_token_of_every_page_is_the_last_one(self, one, app, ours, here, written):
        client, _ = ours
        feed = Feed(client, here, max_page_size=1)
        feed.read()
        written.insert_many({"_id": number} for number in range(1, 4))
        begins, ids = [], []
        for number in range(1, 4):
            (event,) = feed.events()
            assert keys([event]) == [number]
            with watched(one.uri(appName=app)) as (other, seen):
                feed.by(other).read()
                (begin,) = seen.starts()[0].values()
            begins.append(begin["_data"])
            ids.append(event.event_id)
        assert all(own <= begin for own, begin in zip(ids, begins, strict=True))
        assert all(begin < other for begin, other in zip(begins, ids[1:], strict=False))

    @pytest.mark.parametrize("stage", [{"$project": {"_id": 0}}, {"$unset": "_id"}], ids=["project", "unset"])
    def test_cs_52_prose_2_a_missing_token_is_an_error(self, ours, here, written, stage):
        client, _ = ours
        feed = Feed(client, here, **asked(pipeline=[stage]))
        feed.read()
        written.insert_one({"_id": 1})
        with pytest.raises(MulticloudDbError) as caught:
            feed.events()
        assert caught.value.category == ErrorCategory.INVALID_REQUEST

    def test_cs_52_prose_3_one_resume(self, breaks, ours, here, written):
        """The stream is resumed with the same pipeline and options; only the token differs."""
        client, commands = ours
        stages = [{"$match": {"operationType": "insert"}}]
        options = asked(pipeline=stages, batch_size=7, collation={"locale": "en"}, comment="mine")
        feed = Feed(client, here, **options)
        feed.read()
        with breaks("getMore", closeConnection=True):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        first, second = (event.command for event in commands.opening()[-2:])
        assert commands.tries()[-2:] == ["succeeded", "succeeded"]
        for name in ("aggregate", "collation", "comment", "cursor", "readConcern"):
            assert first[name] == second[name]
        assert first["pipeline"][1:] == second["pipeline"][1:]
        kept, again = (body["pipeline"][0]["$changeStream"] for body in (first, second))
        assert {**kept, "resumeAfter": None} == {**again, "resumeAfter": None}

    def test_cs_52_prose_4_no_resume_of_an_aggregate(self, breaks, ours, here):
        client, commands = ours
        with breaks("aggregate", times=None, errorCode=FINAL, **RESUMABLE), pytest.raises(MulticloudDbError):
            Feed(client, here).read()
        assert commands.tries() == ["failed"]

    def test_cs_52_prose_6_a_server_is_selected_for_a_resume(self, one, app, breaks, here, written):
        """For a short time no server is available. The driver waits for a server and continues."""
        with watched(one.uri(appName=app)) as (client, commands):
            feed = Feed(client, here)
            feed.read()
            commands.clear()
            with breaks("getMore", errorCode=91, **RESUMABLE):  # this makes the driver forget the server
                written.insert_one({"_id": 1})
                assert keys(feed.events()) == [1]
            assert commands.tries() == ["succeeded"]

    @pytest.mark.parametrize("scope", [EntireDatabase(), EntireCluster()], ids=str)
    def test_cs_52_prose_7_an_empty_first_answer_keeps_the_cursor(self, ours, here, scope):
        client, commands = ours
        address = ResourceAddress(here.database) if scope == EntireDatabase() else ResourceAddress()
        feed = Feed(client, address, scope=scope)
        for _ in range(3):
            feed.read()
        opened = replies(commands, "aggregate")
        assert all(list(cursor["firstBatch"]) == [] for cursor in opened)
        assert {body["getMore"] for body in commands.bodies("getMore")} == {opened[-1]["id"]}

    def test_cs_52_prose_8_a_cursor_that_cannot_be_killed(self, breaks, warm, written):
        feed, commands = warm
        with breaks("getMore", "killCursors", times=2, errorCode=6, **RESUMABLE):
            written.insert_one({"_id": 1})
            assert keys(feed.events()) == [1]
        assert commands.ends("killCursors") == ["failed"]

    def test_cs_52_prose_11_the_token_is_that_of_the_answer(self, one, app, warm, written):
        feed, commands = warm
        written.insert_one({"_id": 1})
        assert keys(feed.events()) == [1]
        last = token_of(replies(commands, "getMore")[-1])
        with watched(one.uri(appName=app)) as (other, seen):
            feed.by(other).read()
            (begin,) = seen.starts()[0].values()
        assert begin["_data"] == last

    def test_a_hundred_pages_cost_one_cursor(self, warm, written):
        feed, commands = warm
        for number in range(1, 101):
            written.insert_one({"_id": number})
        found = []
        while len(found) < 100:
            found += feed.read(wait=0).events
        assert keys(found) == list(range(1, 101))
        assert commands.tries() == []
