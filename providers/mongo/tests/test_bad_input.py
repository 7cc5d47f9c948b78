"""Tests mistakes of users and failures of networks: every error says what to do and shows no secret."""

import functools
from urllib.parse import quote

import bson
import pytest
from bson import DatetimeMS
from bson.raw_bson import RawBSONDocument

from multiclouddb_api import (
    Beginning,
    ChangeFeedRequest,
    ClientConfig,
    EntireCluster,
    EntireDatabase,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    MulticloudDbKey,
    NewItemStateMode,
    Now,
    OldItemStateMode,
    OperationOptions,
    RecordSkipped,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.refusals import refusal
from multiclouddb_mongo import MongoOptions

from .harness import SMALL
from .servers.mongod import PASSWORD
from .servers.shared import shared

READER, READER_PASSWORD = "reader", "an0ther/secret:x@y"
SECRETS = (
    PASSWORD,
    quote(PASSWORD, safe=""),
    READER_PASSWORD,
    quote(READER_PASSWORD, safe=""),
    "my-document-key",
)
INVALID = ErrorCategory.INVALID_REQUEST
# The time limit for addresses without a server. A real server may take longer.
MOST = 60


refused = functools.partial(refusal, hidden=SECRETS)


def client_of(url, **connection):
    return connect(ClientConfig("mongo", {"url": url, **connection}))


def read(client, address, place=None, size=0, *, timeout=20.0, **asked):
    start = FromContinuationToken(place) if isinstance(place, str) else place or Beginning()
    request = ChangeFeedRequest(address, start, max_page_size=size, **asked)
    return client.read_changes(request, OperationOptions(timeout))


def reading(client, address, place=None, **asked):
    return lambda: read(client, address, place, **asked)


def ids(page):
    return [event.key.components["_id"] for event in page.events]


@pytest.fixture
def client(one):
    with client_of(one.uri(appName="bad-input")) as made:
        yield made


@pytest.fixture
def native(one, database):
    """Return the test's database, for native writes."""
    return one.client()[database]


@pytest.fixture
def here(native):
    native.create_collection("c")
    return ResourceAddress(native.name, "c")


def make_reader(server):
    server.client()["mine"].command(
        "createUser", READER, pwd=READER_PASSWORD, roles=["read"], mechanisms=["SCRAM-SHA-256"]
    )


@pytest.fixture(scope="module")
def guarded():
    """Provide a server with users, one of whom may read the database `mine`."""
    server = shared("us8 one", 1, **SMALL)
    admin = server.client()
    make_reader(server)
    admin["mine"]["c"].insert_one({"_id": "mine"})
    admin["theirs"]["c"].insert_one({"_id": "theirs"})
    yield server
    admin["mine"].command("dropUser", READER)
    for name in ("mine", "theirs"):
        admin.drop_database(name)


class TestTheIdentity:
    """Tests that credentials are not guessed and no secret is shown."""

    def url(self, server, user=None, **options):
        prefix, _, rest = server.uri(**options).partition("://")[2].rpartition("@")
        del prefix
        return f"mongodb://{user}@{rest}" if user else f"mongodb://{rest}"

    def reader(self, server):
        user = f"{READER}:{quote(READER_PASSWORD, safe='')}"
        return client_of(self.url(server, user, authSource="mine"))

    def test_nobody_in_particular(self, guarded):
        with client_of(self.url(guarded)) as client:
            refused(
                ErrorCategory.AUTHENTICATION_FAILED, reading(client, ResourceAddress("mine", "c")), "user"
            )

    @pytest.mark.parametrize("user", ["reader:wrong", "nobody:an0ther"])
    def test_somebody_else(self, guarded, user):
        with client_of(self.url(guarded, user, authSource="mine")) as client:
            error = refused(
                ErrorCategory.AUTHENTICATION_FAILED, reading(client, ResourceAddress("mine", "c")), "password"
            )
            assert not error.retryable

    def test_who_may_read_a_database_reads_it_from_its_beginning(self, guarded):
        with self.reader(guarded) as client:
            for asked, address in (
                ({}, ResourceAddress("mine", "c")),
                ({"scope": EntireDatabase()}, ResourceAddress(database="mine")),
            ):
                assert read(client, address, Now(), **asked).idle
                guarded.client()["mine"]["c"].update_one({}, {"$inc": {"n": 1}})
                seen, place = [], Beginning()
                for _ in range(MOST):
                    page = read(client, address, place, **asked)
                    seen += ids(page)
                    place = page.continuation_token
                    if page.idle:
                        break
                assert seen[-1] == "mine"

    def test_a_user_that_was_dropped_and_made_again_needs_no_new_client(self, guarded):
        """The server closes no connection of a dropped user, but it forgets their logins."""
        here = ResourceAddress("mine", "c")
        with self.reader(guarded) as client:
            page = read(client, here, Now())
            for place in (page.continuation_token, Now()):
                guarded.client()["mine"].command("dropUser", READER)
                make_reader(guarded)
                assert read(client, here, place).events == ()

    def test_a_user_that_was_dropped_cannot_read(self, guarded):
        here = ResourceAddress("mine", "c")
        with self.reader(guarded) as client:
            page = read(client, here, Now())
            guarded.client()["mine"].command("dropUser", READER)
            try:
                refused(ErrorCategory.AUTHENTICATION_FAILED, reading(client, here, page.continuation_token))
            finally:
                make_reader(guarded)
            assert read(client, here, page.continuation_token).events == ()

    @pytest.mark.parametrize(
        ("address", "asked"),
        [
            (ResourceAddress("theirs", "c"), {}),
            (ResourceAddress(database="theirs"), {"scope": EntireDatabase()}),
            (ResourceAddress(), {"scope": EntireCluster()}),
            (ResourceAddress("theirs", "c"), {"provider_options": MongoOptions(allow_missing=True)}),
        ],
        ids=str,
    )
    def test_and_nothing_else(self, guarded, address, asked):
        with self.reader(guarded) as client:
            error = refused(
                ErrorCategory.AUTHORIZATION_FAILED, reading(client, address, Now(), **asked), "role"
            )
            assert error.detail.native_code.startswith("13")


class TestNames:
    @pytest.mark.parametrize("database", ["a.b", "a b", "$a", "a/b", "a\\b", 'a"b', "a\0b", "x" * 64])
    @pytest.mark.parametrize("scope", [None, EntireDatabase()], ids=["collection", "database"])
    def test_a_database_that_cannot_be(self, client, database, scope):
        address = ResourceAddress(database, None if scope else "c")
        asked = {"scope": scope} if scope else {}
        options = MongoOptions(allow_missing=scope is None)
        refused(INVALID, reading(client, address, Now(), provider_options=options, **asked))

    @pytest.mark.parametrize("name", ["$a", "a..b", "a.", ".a", "a\0b"])
    def test_a_collection_that_cannot_be(self, client, native, name):
        native.create_collection("c")
        address = ResourceAddress(native.name, name)
        refused(INVALID, reading(client, address, Now(), provider_options=MongoOptions(allow_missing=True)))

    @pytest.mark.parametrize(
        "address",
        [
            ResourceAddress("local", "oplog.rs"),
            ResourceAddress("admin", "system.version"),
            ResourceAddress(database="admin"),
            ResourceAddress(database="local"),
            ResourceAddress(database="config"),
        ],
        ids=str,
    )
    def test_where_there_is_no_stream(self, client, address):
        asked = {} if address.collection else {"scope": EntireDatabase()}
        refused(INVALID, reading(client, address, Now(), **asked), "admin, local or config")

    def test_an_address_beside_a_cluster(self, client, here):
        for address in (here, ResourceAddress(database=here.database)):
            refused(
                INVALID,
                reading(client, address, Now(), scope=EntireCluster()),
                "address",
                "ResourceAddress()",
            )


WRONG = [
    {"collation": {"locale": "nonsense"}},
    {"collation": {"strength": 1}},
    {"comment": object()},
    {"max_await_time_ms": 2**40},
    {"pipeline": [{"$out": "x"}]},
    {"pipeline": [{"$match": {"$where": "1"}}]},
    {"pipeline": [{"$match": {}, "$project": {"a": 1}}]},
    {"pipeline": [{}]},
    {"pipeline": [{"$project": {"a": "$$nonsense"}}]},
    {"pipeline": [{"$match": {"a": object()}}]},
    {"resume_after": {}},
    {"resume_after": {"_data": "nonsense"}},
    {"resume_after": {"_data": "82"}},
    {"resume_after": {"_data": 5}},
    {"resume_after": {"nonsense": 1}},
    {"start_after": {"_data": "\0"}},
    {"start_after": {"_data": "8" * 100_000}},
]


class TestOptions:
    """Tests option values that the server refuses."""

    # The error shows the server's message without quoted values.

    @pytest.mark.parametrize(
        "options", WRONG, ids=[f"{name} {at}" for at, option in enumerate(WRONG) for name in option]
    )
    def test_what_the_server_does_not_take(self, client, here, native, options):
        def act():
            page = read(client, here, Now(), provider_options=MongoOptions(**options))
            native["c"].insert_one({"_id": 1})
            read(client, here, page.continuation_token, provider_options=MongoOptions(**options))

        assert not refused(INVALID, act).retryable

    def test_the_token_of_an_invalidate_goes_with_start_after(self, client, here, native):
        with native["c"].watch() as stream:
            native["c"].drop()
            changes = [stream.next(), stream.next()]
        assert changes[-1]["operationType"] == "invalidate"
        native["c"].insert_one({"_id": 1})
        token = changes[-1]["_id"]
        before = MongoOptions(resume_after=token)
        refused(INVALID, reading(client, here, Now(), provider_options=before), "start_after")
        assert ids(read(client, here, Now(), provider_options=MongoOptions(start_after=token))) == [1]


class TestPipelines:
    """The caller's pipeline may remove many changes."""

    @pytest.mark.parametrize("name", ["operationType", "documentKey", "ns"])
    def test_what_is_needed_is_named(self, client, here, native, name):
        asked = {"provider_options": MongoOptions(pipeline=[{"$unset": name}])}
        token = read(client, here, Now(), **asked).continuation_token
        native["c"].insert_one({"_id": "my-document-key"})
        refused(INVALID, reading(client, here, token, **asked), name, "pipeline")

    @pytest.mark.parametrize(
        "stage",
        [
            {"$set": {"documentKey": "text"}},
            {"$set": {"fullDocument": "text"}},
            {"$set": {"ns": "text"}},
            {"$set": {"wallTime": "text", "clusterTime": "text"}},
        ],
        ids=str,
    )
    def test_what_makes_no_sense_of_an_event_is_no_failure_of_ours(self, client, here, native, stage):
        asked = {"provider_options": MongoOptions(pipeline=[stage])}
        token = read(client, here, Now(), **asked).continuation_token
        native["c"].insert_one({"_id": 1})
        native["c"].drop()
        try:
            for _ in range(5):
                token = read(client, here, token, **asked).continuation_token
        except MulticloudDbError as error:
            category = error.category
            assert category in (INVALID, ErrorCategory.PROVIDER_ERROR)

    @pytest.mark.parametrize(
        ("ending", "stage"),
        [("drop", {"$match": {"operationType": "insert"}}), ("rename", {"$redact": "$$PRUNE"})],
    )
    def test_none_hides_how_a_feed_ends(self, client, here, native, stage, ending):
        asked = {"provider_options": MongoOptions(pipeline=[stage])}
        token = read(client, here, Now(), **asked).continuation_token
        native["c"].insert_one({"_id": 1})
        native["c"].drop() if ending == "drop" else native["c"].rename("d")
        texts = []
        for _ in range(5):
            page = read(client, here, token, **asked)
            texts += [type(notice).__name__ for notice in page.notices]
            token = page.continuation_token
        assert "FeedEnded" in texts


class TestTokens:
    """Tests that the provider refuses wrong tokens that the server would accept."""

    def token(self, client, address, **asked):
        return read(client, address, Now(), **asked).continuation_token

    def test_documents_may_come_or_not_from_page_to_page(self, client, here, native):
        token = self.token(client, here)
        native["c"].insert_one({"_id": 1})
        for mode in (NewItemStateMode.OMIT, NewItemStateMode.INCLUDE_IF_AVAILABLE):
            for old in (OldItemStateMode.OMIT, OldItemStateMode.INCLUDE_IF_AVAILABLE):
                asked = {"new_item_state_mode": mode, "old_item_state_mode": old, "include_native": True}
                assert ids(read(client, here, token, **asked)) == [1]


class TestPoison:
    """Tests documents that the server accepts but no driver can read."""

    def damaged(self, collection, document):
        raw = bson.encode(document)
        assert b"damaged" in raw
        collection.insert_one(RawBSONDocument(raw.replace(b"damaged", b"damage\xff")))

    def walk(self, client, address, token, size=0, **asked):
        """Return the ids of all changes, with None for each skipped change."""
        seen, skipped = [], 0
        for _ in range(400):
            try:
                page = read(client, address, token, size, **asked)
            except MulticloudDbError as error:
                refused(ErrorCategory.PROVIDER_ERROR, reading(client, address, token, **asked), "skip_token")
                seen.append(None)
                token = error.detail.skip_token
                continue
            seen += ids(page)
            skipped += sum(isinstance(notice, RecordSkipped) for notice in page.notices)
            token = page.continuation_token
            if page.idle:
                return seen, skipped
        return pytest.fail("not idle")

    @pytest.mark.parametrize(
        "document",
        [
            {"_id": "damaged"},
            {"_id": 1, "damaged": 1},
            {"_id": 1, "a": {"b": [{"c": "damaged"}]}},
            {"_id": {"a": "damaged"}, "n": 1},
        ],
        ids=str,
    )
    def test_wherever_the_damage_is(self, client, here, native, document):
        token = read(client, here, Now()).continuation_token
        native["c"].insert_one({"_id": "before"})
        self.damaged(native["c"], document)
        native["c"].insert_one({"_id": "after"})
        assert self.walk(client, here, token)[0] == ["before", None, "after"]

    def test_dates_beyond_all_calendars_are_no_damage(self, client, here, native):
        token = read(client, here, Now()).continuation_token
        native["c"].insert_one({"_id": DatetimeMS(2**62), "at": DatetimeMS(-(2**62))})
        (event,) = read(client, here, token).events
        assert event.key == MulticloudDbKey({"_id": DatetimeMS(2**62)})
        assert event.new_item_state["at"] == DatetimeMS(-(2**62))

    def test_the_one_that_is_named_is_the_one_that_a_filter_lets_through(self, client, native):
        collection = native.create_collection("c", changeStreamPreAndPostImages={"enabled": True})
        address = ResourceAddress(native.name, "c")
        asked = {
            "old_item_state_mode": OldItemStateMode.INCLUDE_IF_AVAILABLE,
            "provider_options": MongoOptions(pipeline=[{"$match": {"fullDocument.n": 1}}]),
        }
        large = "x" * 9_000_000
        collection.insert_one({"_id": "large", "text": large, "n": 1})
        token = read(client, address, Now(), **asked).continuation_token
        collection.update_one({"_id": "large"}, {"$set": {"text": large[:-1]}})
        collection.insert_one({"_id": "good", "n": 1})
        assert self.walk(client, address, token, **asked)[0] == [None, "good"]
