"""Tests what errors say (why no server answers, error codes, what to do), and second attempts."""

import pytest
from pymongo.database import Database
from pymongo.errors import AutoReconnect, OperationFailure, ServerSelectionTimeoutError

from multiclouddb_api import (
    ChangeFeedRequest,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.position import After, time_text

REQUEST = ChangeFeedRequest(ResourceAddress("shop", "orders"), Now())
STEPPED_DOWN = OperationFailure("stepped down", 189)
LOST = AutoReconnect("connection closed")
LATE = ServerSelectionTimeoutError("none found")
DENIED = OperationFailure("not authorized", 13)
SHORT = OperationOptions(timeout_seconds=4)


def failure(client, request, options=SHORT):
    with pytest.raises(MulticloudDbError) as caught:
        client.read_changes(request, options)
    return caught.value


@pytest.fixture
def refuse(monkeypatch):
    """Make one of the library's commands fail the given number of times."""
    # The `hello` commands of the driver's monitors still succeed.
    original, asked = Database.command, []

    def begin(name, times, error):
        def command(database, what, *args, **options):
            if what != name:
                return original(database, what, *args, **options)
            asked.append(what)
            if len(asked) <= times:
                raise error
            return original(database, what, *args, **options)

        monkeypatch.setattr(Database, "command", command)
        return asked

    return begin


class TestNoServer:
    """Tests calls that have less time than `serverSelectionTimeoutMS`, which is 15 s by default."""

    def test_a_host_that_is_unknown(self):
        with connect("mongodb://no-such-host.invalid/") as client:
            assert "no-such-host.invalid:27017: [Errno -" in failure(client, REQUEST).message

    def test_tls_that_the_server_does_not_speak(self, one):
        with connect(one.uri(tls="true")) as client:
            assert "SSL" in failure(client, REQUEST).message


class TestSecondTry:
    """PyMongo retries its own reads once, but it never retries a command of the caller."""

    @pytest.mark.parametrize("error", [STEPPED_DOWN, LOST], ids=["refused", "lost"])
    @pytest.mark.parametrize("command", ["hello", "buildinfo"])
    def test_what_opens_a_feed_is_asked_once_more(self, one, here, refuse, command, error):
        asked = refuse(command, 1, error)
        with connect(one.uri()) as client:
            assert client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
        assert len(asked) >= 2

    @pytest.mark.parametrize("command", ["hello", "buildinfo"])
    def test_but_not_a_third_time(self, one, here, refuse, command):
        asked = refuse(command, 2, STEPPED_DOWN)
        with connect(one.uri()) as client:
            error = failure(client, ChangeFeedRequest(here, Now()))
        assert (error.detail.native_code, error.retryable) == ("189", True)
        assert len(asked) == 2

    def test_nor_where_the_connection_says_no(self, one, here, refuse):
        asked = refuse("hello", 1, LOST)
        with connect(one.uri(retryReads="false")) as client:
            assert failure(client, ChangeFeedRequest(here, Now())).retryable
        assert len(asked) == 1

    @pytest.mark.parametrize("error", [LATE, DENIED], ids=["no server", "denied"])
    def test_nor_what_would_fail_again(self, one, here, refuse, error):
        asked = refuse("hello", 1, error)
        with connect(one.uri()) as client:
            failure(client, ChangeFeedRequest(here, Now()))
        assert len(asked) == 1

    def test_what_the_server_does_not_have_is_not_missed(self, one, here, refuse):
        """The provider works with the Stable API, which does not include `buildInfo`."""
        asked = refuse("buildinfo", 9, OperationFailure("not in API Version 1", 323))
        with connect(one.uri()) as client:
            assert client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
        assert len(asked) == 1


class TestWaysOut:
    def test_of_a_time_series_is_no_collection_that_is_refused_too(self, one, here):
        one.client()[here.database].create_collection("series", timeseries={"timeField": "at"})
        with connect(one.uri()) as client:
            message = failure(
                client, ChangeFeedRequest(ResourceAddress(here.database, "series"), Now())
            ).message
        assert "'series' is a timeseries" in message
        assert "ordinary collection" in message
        assert "after it" not in message

    def test_of_a_view_is_what_it_reads(self, one, here):
        one.client()[here.database].create_collection("view", viewOn="c", pipeline=[])
        with connect(one.uri()) as client:
            message = failure(
                client, ChangeFeedRequest(ResourceAddress(here.database, "view"), Now())
            ).message
        assert "viewOn" in message

    def test_of_a_token_whose_collection_is_gone_is_to_follow(self, one, here, written):
        """The token is later than everything that the oplog contains about the collection."""
        token = self.behind_the_end(one, here, written)
        with connect(one.uri()) as client:
            error = failure(client, ChangeFeedRequest(here, FromContinuationToken(token)))
        assert error.category == ErrorCategory.NOT_FOUND
        assert 'MongoOptions(after_invalidate="follow")' in error.message

    def test_and_that_is_one(self, one, here, written):
        token = self.behind_the_end(one, here, written)
        written.insert_one({"_id": 7})
        request = ChangeFeedRequest(
            here, FromContinuationToken(token), provider_options=MongoOptions(after_invalidate="follow")
        )
        with connect(one.uri()) as client:
            events = list(client.iterate_changes(request, until_idle=True))
        assert [event.key.components["_id"] for event in events] == [7]

    def behind_the_end(self, one, here, written):
        """Return a token for a collection with nothing left to read."""
        with connect(one.uri()) as client:
            token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
            written.drop()
            options = MongoOptions(after_invalidate="follow")
            for _ in range(3):
                request = ChangeFeedRequest(here, FromContinuationToken(token), provider_options=options)
                token = client.read_changes(request).continuation_token
        return token


def test_a_record_is_at_a_cluster_time():
    assert time_text(After("e", "82638F7B0000000003")) == "cluster time 2022-12-06T17:25:20Z"
    assert time_text(After("r", "b:BQAAAAA=")) == "an unknown cluster time"
