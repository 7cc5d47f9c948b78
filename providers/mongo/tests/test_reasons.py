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

REQUEST = ChangeFeedRequest(ResourceAddress("shop", "orders"), Now())
FOLLOW = MongoOptions(after_invalidate="follow")
STEPPED_DOWN = OperationFailure("stepped down", 189)
LOST = AutoReconnect("connection closed")
LATE = ServerSelectionTimeoutError("none found")
DENIED = OperationFailure("not authorized", 13)
NOT_IN_API = OperationFailure("not in API Version 1", 323)


def failure(url, request):
    with connect(url) as client, pytest.raises(MulticloudDbError) as caught:
        client.read_changes(request, OperationOptions(timeout_seconds=4))
    return caught.value


def test_a_host_that_is_unknown():
    """The call has less time than `serverSelectionTimeoutMS`, which is 15 s by default."""
    assert (
        "no-such-host.invalid:27017: [Errno -" in failure("mongodb://no-such-host.invalid/", REQUEST).message
    )


def test_tls_that_the_server_does_not_speak(one):
    assert "SSL" in failure(one.uri(tls="true"), REQUEST).message


# PyMongo retries its own reads once, but it never retries a command of the caller.
@pytest.mark.parametrize(
    ("command", "times", "error", "options", "tries", "works"),
    [
        ("hello", 1, STEPPED_DOWN, {}, 2, True),
        ("buildinfo", 1, LOST, {}, 2, True),
        ("hello", 2, STEPPED_DOWN, {}, 2, False),
        ("hello", 1, LOST, {"retryReads": "false"}, 1, False),
        ("hello", 1, LATE, {}, 1, False),
        ("buildinfo", 1, DENIED, {}, 1, True),
        ("buildinfo", 9, NOT_IN_API, {}, 1, True),
    ],
)
def test_what_opens_a_feed_is_asked_once_more(
    one, here, monkeypatch, command, times, error, options, tries, works
):
    original, asked = Database.command, []

    # The `hello` commands of the driver's monitors still succeed.
    def run(database, what, *arguments, **named):
        if what == command:
            asked.append(what)
            if len(asked) <= times:
                raise error
        return original(database, what, *arguments, **named)

    monkeypatch.setattr(Database, "command", run)
    request = ChangeFeedRequest(here, Now())
    if works:
        with connect(one.uri(**options)) as client:
            assert client.read_changes(request).continuation_token
    else:
        assert failure(one.uri(**options), request).retryable
    assert len(asked) >= tries if works and tries > 1 else len(asked) == tries


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"timeseries": {"timeField": "at"}}, ["is a timeseries", "ordinary collection"]),
        ({"viewOn": "c", "pipeline": []}, ["viewOn"]),
    ],
    ids=["time series", "view"],
)
def test_a_kind_of_collection_without_a_stream(one, here, settings, words):
    one.client()[here.database].create_collection("other", **settings)
    message = failure(one.uri(), ChangeFeedRequest(ResourceAddress(here.database, "other"), Now())).message
    assert all(word in message for word in words)


@pytest.fixture
def behind_the_end(one, here, written):
    """Return a token that is later than everything that the oplog contains about its collection."""
    with connect(one.uri()) as client:
        token = client.read_changes(ChangeFeedRequest(here, Now())).continuation_token
        written.drop()
        for _ in range(3):
            request = ChangeFeedRequest(here, FromContinuationToken(token), provider_options=FOLLOW)
            token = client.read_changes(request).continuation_token
    return FromContinuationToken(token)


def test_a_token_whose_collection_is_gone_names_the_way_out(one, here, written, behind_the_end):
    error = failure(one.uri(), ChangeFeedRequest(here, behind_the_end))
    assert error.category == ErrorCategory.NOT_FOUND
    assert 'MongoOptions(after_invalidate="follow")' in error.message
    written.insert_one({"_id": 7})
    request = ChangeFeedRequest(here, behind_the_end, provider_options=FOLLOW)
    with connect(one.uri()) as client:
        events = list(client.iterate_changes(request, until_idle=True))
    assert [event.key.components["_id"] for event in events] == [7]
