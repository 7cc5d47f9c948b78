"""Tests the category of each failure of PyMongo and of the server.

No message shows a document or a secret.
"""

import pickle

import bson
import pytest
from bson.errors import InvalidBSON, InvalidDocument
from pymongo import errors as vendor
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
from multiclouddb_mongo.errors import classify
from multiclouddb_spi.errors import cause_of, to_error

INVALID = ErrorCategory.INVALID_REQUEST
UNSUPPORTED = ErrorCategory.UNSUPPORTED_CAPABILITY
AUTHENTICATION = ErrorCategory.AUTHENTICATION_FAILED
AUTHORIZATION = ErrorCategory.AUTHORIZATION_FAILED
TRANSIENT = ErrorCategory.TRANSIENT_FAILURE
PERMANENT = ErrorCategory.PERMANENT_FAILURE
THROTTLED = ErrorCategory.THROTTLED
KEY = "C5345435245544B4559"
TOKEN = f'{{ _data: "826B004BB1000000142B022C0100296E5A1004F6EF5D{KEY}000004" }}'
AT_WORK = "PlanExecutor error during aggregation :: caused by :: "
PLANNED = (
    f"error processing query: ns=shop.cTree: _id $in [ {KEY} ]\nSort: {{}}\nProj: {{}}\n"
    " planner returned error :: caused by :: "
)
SECRET = "p@ss:w0rd"
DENIED = "not authorized on shop to execute command"
UNAVAILABLE = (
    *(6, 7, 24, 63, 89, 91, 112, 133, 134, 145, 150, 189, 202, 216, 234, 239, 246, 249, 250, 272, 279),
    *(317, 338, 342, 343, 355, 365, 9001, 10058, 10107),
    *(11600, 11601, 11602, 13388, 13435, 13436, 46841, 407, 453, 50915, 56846, 91331, 10045600),
)

# Each row: the server's code and message (in version 6.0.5) → the category, whether to retry, and a part of
# the advice.
CODES = [
    (286, "Resume was not possible", ErrorCategory.CHECKPOINT_EXPIRED, False, "SkipToOldest()"),
    (136, "CollectionScan died", TRANSIENT, True, "same token"),
    # Amazon DocumentDB, which uses this code for another failure.
    (136, "modifyChangeStreams has not been run for this collection", UNSUPPORTED, False, "not enabled"),
    (280, f"{AT_WORK}the resume token was not found. {TOKEN}", INVALID, False, "address"),
    (280, f"{AT_WORK}an event whose _id field, {TOKEN}", INVALID, False, "keep _id as it is"),
    (8, f"{AT_WORK}exec/document_value/value.cpp:325", INVALID, False, "keep _id as it is"),
    (260, "Attempting to resume a change stream using 'resumeAfter'", INVALID, False, "start_after"),
    (9, "resume token string was not a valid hex string", INVALID, False, "unchanged"),
    # Amazon DocumentDB (PeerDB-io/peerdb PR 4666).
    (9, f"Invalid resume token: {TOKEN}", INVALID, False, "deployment that it came from"),
    (15, "Invalid advance (1) past end of buffer[0] at offset: 0", INVALID, False, "unchanged"),
    (40647, f"Bad resume token: _data of missing or of wrong type. got {TOKEN}", INVALID, False, "unchanged"),
    (40649, "invalid empty resume token", INVALID, False, "unchanged"),
    (50811, "KeyString format error: Unknown type: 255", INVALID, False, "unchanged"),
    (50810, "KeyString format error: Expected type Decimal.", INVALID, False, "unchanged"),
    (40573, "The $changeStream stage is only supported on replica sets", UNSUPPORTED, False, "replica set"),
    (47, f"{AT_WORK}Change stream was configured to require", UNSUPPORTED, False, "INCLUDE_IF_AVAILABLE"),
    (47, "No document found for the shard", PERMANENT, False, "list of error codes"),
    (280, f"{AT_WORK}cannot resume a split event {TOKEN}", INVALID, False, "its log has the reason"),
    # Sizes that reports about damaged files quote.
    *(
        (10334, f"{AT_WORK}BSONObj size: {size} is invalid", ErrorCategory.PROVIDER_ERROR, False, "damaged")
        for size in (0, -1342177280, 779314537)
    ),
    (10334, f"{AT_WORK}BSONObj size: 18000383 {TOKEN}", ErrorCategory.PROVIDER_ERROR, False, "16 MB"),
    (26, "ns does not exist", ErrorCategory.NOT_FOUND, False, "names of the address"),
    (73, "$changeStream may not be opened on the internal admin", INVALID, False, "ordinary collection"),
    (73, "Invalid namespace specified 'shop.'", INVALID, False, "'shop.'"),
    (366, "Erroneous index key found with KeyString", PERMANENT, False, "list of error codes"),
    (166, "Namespace shop.v is a view, not a collection", INVALID, False, "ordinary collection"),
    (18, "Authentication failed.", AUTHENTICATION, False, "authSource"),
    (11, 'Could not find user "CN=reader" for db "$external"', AUTHENTICATION, False, "authSource"),
    (11, "User 'bob@shop' not found", PERMANENT, False, "'bob@shop'"),  # of dropUser
    (334, "Unable to use SCRAM", AUTHENTICATION, False, "authMechanism"),
    (391, "Reauthentication required", AUTHENTICATION, False, "authMechanism"),
    (8000, "bad auth : Authentication failed.", AUTHENTICATION, False, "the password"),
    (8000, "you are over your space quota", PERMANENT, False, "list of error codes"),
    (
        8000,
        "user is not allowed to do action [find] on [shop.c]",
        AUTHORIZATION,
        False,
        "/databases/mongodb/",
    ),
    (8000, "not authorized on admin to execute command", AUTHORIZATION, False, "/databases/mongodb/"),
    (8000, "the $out stage is not authored here", PERMANENT, False, "$out stage"),
    (13, "Command aggregate requires authentication", AUTHENTICATION, False, "put a user"),
    (13, f"{DENIED} {{ {TOKEN} }}", AUTHORIZATION, False, "/databases/mongodb/"),
    (13, f'{DENIED} {{ find: "{TOKEN}" }}', AUTHORIZATION, False, "find on database 'shop': "),
    (31, "Could not find role: reader@shop", PERMANENT, False, "reader@shop"),  # of grantRolesToUser
    *((code, "it is so", THROTTLED, True, "fewer processes") for code in (261, 402, 433, 449, 450, 462)),
    # Servers without change streams: MongoDB before 3.6, open-source DocumentDB, FerretDB, Amazon DocumentDB.
    (40324, "Unrecognized pipeline stage name: '$changeStream'", UNSUPPORTED, False, "no change streams"),
    (115, "Stage $changeStream is not supported yet", UNSUPPORTED, False, "no change streams"),
    (
        238,
        '`aggregate` stage "$changeStream" is not implemented yet',
        UNSUPPORTED,
        False,
        "no change streams",
    ),
    (303, "Feature not supported: change streams on a database", UNSUPPORTED, False, "no change streams"),
    (59, "no such command: 'aggregate'", UNSUPPORTED, False, "no change streams"),
    (238, "`collMod` is not implemented yet", UNSUPPORTED, False, "does not have it"),
    (303, "Feature not supported: $mergeObjects", INVALID, False, "$mergeObjects"),
    (303, "split horizons of the set have changed", TRANSIENT, True, "try again"),
    (115, "Stage $changeStreamSplitLargeEvent is not supported", INVALID, False, "SplitLargeEvent"),
    (40324, "Unrecognized pipeline stage name: '$changeStreamSplitLargeEvent'", INVALID, False, "SplitLarge"),
    (70, "Shard s2 not found", TRANSIENT, True, "removed from the cluster"),
    (146, "$group exceeded the memory limit", INVALID, False, "allowDiskUse"),
    (292, "Sort exceeded memory limit of 104857600 bytes", INVALID, False, "allowDiskUse"),
    (411, "Query rejected by admin query settings", AUTHORIZATION, False, "removeQuerySettings"),
    (12050, "cannot delete from system namespace", INVALID, False, "system namespace"),
    (291, f"{PLANNED}No indexed plans available", INVALID, False, "(No indexed plans available)"),
    (2, f"{PLANNED}hint provided does not correspond to an existing index", INVALID, False, "(hint provided"),
    (16500, "TooManyRequests", THROTTLED, True, "fewer processes"),
    (43, "cursor id 12345 not found", TRANSIENT, True, "same token"),
    (237, "operation was interrupted", TRANSIENT, True, "same token"),
    (50, "operation exceeded time limit", TRANSIENT, True, "longer timeout"),
    (262, "operation exceeded time limit", TRANSIENT, True, "longer timeout"),
    *((code, "it is so", TRANSIENT, True, "try again") for code in UNAVAILABLE),
    (2, "Enumeration value 'zz' for field '$changeStream.fullDocument'", INVALID, False, "'zz'"),
    (14, "is the wrong type 'int'", INVALID, False, "wrong type 'int'"),
    (20, "$group is not permitted in a $changeStream pipeline", INVALID, False, "$group"),
    (59, "no such command: 'zzz'", INVALID, False, "'zzz'"),
    (72, "Command aggregate does not support { readConcern", INVALID, False, "readConcern"),
    (168, "Unrecognized expression '$zz'", INVALID, False, "$zz"),
    (263, "Cannot run in a multi-document transaction", INVALID, False, "transaction"),
    (322, "API version", INVALID, False, "API version"),
    (323, "Provided apiStrict:true", INVALID, False, "apiStrict"),
    (40324, "Unrecognized pipeline stage name: '$foo'", INVALID, False, "$foo"),
    (40415, "BSON field 'ping.zzz' is an unknown field.", INVALID, False, "ping.zzz"),
    (40602, "$changeStream is only valid as the first stage", INVALID, False, "first stage"),
    (121, f"Document failed validation {KEY}", INVALID, False, "validation"),
    (11000, f"E11000 duplicate key error {KEY}", ErrorCategory.CONFLICT, False, "unique index"),
    # Unlisted codes.
    (51091, "Regular expression is invalid: missing )", INVALID, False, "missing )"),
    (40323, "A pipeline stage must contain exactly one field.", INVALID, False, "exactly one field"),
    (17276, "Use of undefined variable: nonsense", INVALID, False, "undefined variable"),
    (15000, "it is so", INVALID, False, "change the part that the server"),
    (14999, "it is so", PERMANENT, False, "list of error codes"),
    (40066, f"{AT_WORK}$switch found no branch for {KEY}", INVALID, False, "fails on a document"),
    (241, f"{AT_WORK}Failed to parse number '{KEY}' in $convert", PERMANENT, False, "fails on a document"),
    (66, f"Plan executor error during findAndModify :: _id: {KEY}", PERMANENT, False, "fails on a document"),
    (2, f"Executor error during getMore :: caused by :: {KEY}", INVALID, False, "fails on a document"),
    (None, "it is so", PERMANENT, False, "list of error codes"),
]
# Each row: an exception of PyMongo → the category, whether to retry, and a part of the advice.
EXCEPTIONS = [
    (vendor.ConnectionFailure("a:27017: connection closed"), TRANSIENT, True, "try again"),
    (vendor.AutoReconnect("a:27017: [Errno 104] reset"), TRANSIENT, True, "Errno 104"),
    (vendor.NetworkTimeout("a:27017: timed out"), TRANSIENT, True, "timed out"),
    (vendor._OperationCancelled("operation cancelled"), TRANSIENT, True, "try again"),
    (vendor.NotPrimaryError("not primary", {"code": 10107, "errmsg": "x"}), TRANSIENT, True, "again"),
    (vendor.ServerSelectionTimeoutError("No servers found yet, Timeout: 1s"), TRANSIENT, True, "replicaSet"),
    (vendor.WaitQueueTimeoutError("Timed out"), TRANSIENT, True, "maxPoolSize"),
    (vendor.ProtocolError("Got response id 1"), TRANSIENT, True, "try again"),
    (vendor.CursorNotFound("cursor id 1 not found", 43), TRANSIENT, True, "same token"),
    (vendor.ExecutionTimeout("late"), TRANSIENT, True, "longer timeout"),
    (vendor.ConfigurationError("Server at a reports wire version 6"), UNSUPPORTED, False, "MongoDB 4.4"),
    (vendor.ConfigurationError(f"a password: {SECRET}"), INVALID, False, "settings of the connection"),
    (vendor.InvalidURI(f"a password: {SECRET}"), INVALID, False, "settings of the connection"),
    (vendor.InvalidName("collection names must not contain '$'"), INVALID, False, "names of the address"),
    (vendor.InvalidOperation("the resume token is missing"), INVALID, False, "keep _id as it is"),
    # A server that makes changes itself, and gives them no token (sboesebeck/morphium issue 347).
    (vendor.InvalidOperation("No resume without a resume token"), INVALID, False, "which is no MongoDB"),
    (vendor.InvalidOperation("Cannot use MongoClient after close"), INVALID, False, "after close"),
    (vendor.EncryptionError(ValueError(KEY)), PERMANENT, False, "key vault"),
    (vendor.DocumentTooLarge(KEY), INVALID, False, "larger than"),
    (InvalidDocument(f"cannot encode object: {KEY}"), INVALID, False, "written as BSON"),
    (InvalidBSON("invalid boolean value: 2"), ErrorCategory.PROVIDER_ERROR, False, "invalid boolean value"),
    (OverflowError("MongoDB can only handle up to 8-byte ints"), INVALID, False, "64 bits"),
    (UnicodeEncodeError("utf-8", f"\ud800{KEY}", 0, 1, "surrogates"), INVALID, False, "valid Unicode"),
    (OverflowError("date value out of range"), PERMANENT, False, "report"),
    (ConnectionResetError(104, "reset"), TRANSIENT, True, "try again"),
    (TimeoutError("late"), TRANSIENT, True, "try again"),
    (KeyError("operationType"), PERMANENT, False, "report"),
    (RuntimeError(), PERMANENT, False, "report"),
]


def answered(code, message="it is so", **more):
    """Return a failure as PyMongo raises it for an answer of the server."""
    reply = {"ok": 0.0, "errmsg": message, "code": code, "codeName": f"Code{code}", **more}
    return vendor.OperationFailure(message, code, reply)


def is_one_line(text):
    return len(text.splitlines()) == 1 and text.isprintable()


class TestTable:
    @pytest.mark.parametrize(("code", "words", "category", "retryable", "way_out"), CODES)
    def test_a_code(self, code, words, category, retryable, way_out):
        found = classify(answered(code, words))
        assert (found.category, found.retryable) == (category, retryable)
        assert found.code == (None if code is None else str(code))
        assert found.message.startswith("MongoDB" if code is None else f"MongoDB {code} Code{code}")
        assert way_out in found.message
        assert is_one_line(found.message)

    @pytest.mark.parametrize(("error", "category", "retryable", "way_out"), EXCEPTIONS, ids=repr)
    def test_an_exception(self, error, category, retryable, way_out):
        found = classify(error)
        assert (found.category, found.retryable) == (category, retryable)
        assert way_out in found.message
        assert is_one_line(found.message)

    def test_every_code_that_pymongo_retries_is_retryable(self):
        from pymongo.helpers_shared import _RETRYABLE_ERROR_CODES

        for code in _RETRYABLE_ERROR_CODES:
            assert classify(answered(code)).retryable, code


def test_a_shard_that_was_removed_has_taken_its_changes_with_it():
    """MongoDB 8.3 and 9.0; the name of the code is known, and not its number."""
    found = classify(answered(99998, codeName="ShardRemovedError"))
    assert found.category == ErrorCategory.CHECKPOINT_EXPIRED


class TestLabels:
    def test_a_resumable_error_is_transient_whatever_its_code(self):
        found = classify(answered(99999, errorLabels=["ResumableChangeStreamError"]))
        assert (found.category, found.retryable) == (TRANSIENT, True)

    def test_a_code_goes_before_its_label(self):
        found = classify(answered(280, errorLabels=["ResumableChangeStreamError"]))
        assert found.category == INVALID

    @pytest.mark.parametrize(("asked", "seconds"), [(None, None), (250, 0.25), (-5, 0.0), ("soon", None)])
    def test_an_overloaded_server_is_too_fast_for_it(self, asked, seconds):
        more = {"baseBackoffMS": asked} if asked else {}
        found = classify(answered(50, errorLabels=["SystemOverloadedError", "RetryableError"], **more))
        assert (found.category, found.retryable, found.retry_after) == (THROTTLED, True, seconds)

    def test_pymongo_s_own_label_of_a_failed_connection_is_none_of_the_server(self):
        error = vendor.NetworkTimeout("a:27017: timed out")
        error._add_error_label("SystemOverloadedError")
        assert classify(error).category == TRANSIENT


@pytest.mark.parametrize("name", ["NXDOMAIN", "NoAnswer", "LifetimeTimeout", "NoNameservers"])
def test_dns_for_srv(name):
    error = vendor.ConfigurationError("The DNS query name does not exist")
    error.__cause__ = type(name, (Exception,), {"__module__": "dns.resolver"})()
    found, passes = classify(error), name not in ("NXDOMAIN", "NoAnswer")
    assert (found.category, found.retryable) == (TRANSIENT if passes else INVALID, passes)
    assert "mongodb+srv://" in found.message


class TestText:
    @pytest.mark.parametrize(
        "details", [None, {}, {"code": "x"}, {"errmsg": 7, "codeName": 7, "errorLabels": []}]
    )
    def test_a_reply_without_anything(self, details):
        found = classify(vendor.OperationFailure("it is so", None, details))
        assert (found.category, found.code) == (PERMANENT, None)
        assert is_one_line(found.message)

    def test_it_raises_nothing_at_all(self):
        class Odd(vendor.OperationFailure):
            @property
            def details(self):
                raise RuntimeError(SECRET)

            def __str__(self):
                raise RuntimeError(SECRET)

        found = classify(Odd("x"))
        assert found.category == PERMANENT
        assert found.vendor_retried
        assert found.confidential
        assert SECRET not in found.message


class TestSecrets:
    """Servers quote documents, keys, tokens and commands; PyMongo quotes connection strings and values."""

    ERRORS = (
        *(answered(code, words) for code, words, *_ in CODES),
        *(error for error, *_ in EXCEPTIONS),
        vendor.NotPrimaryError("x", {"code": 91, "errmsg": "x"}),
    )

    @pytest.mark.parametrize("error", ERRORS, ids=repr)
    def test_none_gets_out(self, error):
        found = classify(error)
        raised = to_error("mongo", "read_changes", found, error)
        raised.__cause__ = cause_of(found, error)
        texts = [str(raised), repr(raised), repr(raised.detail), str(raised.__cause__)]
        for text in [*texts, str(pickle.dumps(raised))]:
            assert KEY not in text
            assert SECRET not in text

    def test_the_reply_around_the_server_s_words_is_left_out(self):
        message = classify(answered(2, "unknown operator: $zz", filter={"name": KEY})).message
        assert "$zz" in message
        assert KEY not in message

    def test_what_bson_says_of_a_real_value_stays_inside(self):
        for value in (object(), 2**70, {1: KEY}, "\ud800"):
            with pytest.raises(Exception) as caught:  # noqa: PT011
                bson.encode({"a": value, "b": KEY})
            found = classify(caught.value)
            assert found.category == INVALID
            assert found.confidential


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
