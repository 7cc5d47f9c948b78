"""Tests the configuration of a deployment, the errors for wrong names, and the resulting MongoClient."""

import functools
import socket
import traceback
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from bson import CodecOptions
from bson.timestamp import Timestamp
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pymongo import MongoClient

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance import refusals
from multiclouddb_mongo import MongoOptions
from multiclouddb_mongo.config import MongoConfig
from multiclouddb_mongo.provider import PLUGIN
from multiclouddb_mongo.values import CODEC
from testing.frames import shown_by

SECRET = "wJalrXUtnFEMIK7MDENG"
HOST = "mongodb://localhost"


refused = functools.partial(refusals.refused, ErrorCategory.INVALID_REQUEST)


def checked(url=HOST, **more):
    return MongoConfig.from_client(ClientConfig("mongo", {"url": url, **more}))


@pytest.fixture
def made():
    clients = []

    def make(url=HOST, concurrency=4, **more):
        clients.append(checked(url, **more).client(concurrency))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def everything_said(error):
    """Return everything that a log could show about an error: its text, its causes, and their texts."""
    seen = []
    while error is not None:
        seen += [str(error), repr(error), repr(getattr(error, "detail", None))]
        seen += traceback.format_exception_only(error)
        error = error.__cause__ or error.__context__
    return "\n".join(seen)


class TestNaming:
    @pytest.mark.parametrize(
        ("url", "database"),
        [
            ("mongodb://localhost", None),
            ("mongodb://a:27017,b:27018,[::1]:27019/shop?replicaSet=rs", "shop"),
            ("mongodb://localhost/shop.orders", "shop"),
            ("mongodb://localhost/sh%C3%B6p", "shöp"),
            ("mongodb://user:p%40ss%3Aw@localhost/shop?authSource=admin", "shop"),
            ("mongodb://%2Ftmp%2Fmongodb-27017.sock/shop", "shop"),
            ("mongodb+srv://user:pw@cluster.example.net/?srvMaxHosts=2&srvServiceName=mine", None),
            ("mongodb://localhost/?readPreferenceTags=dc:a&readPreferenceTags=", None),
            ("mongodb://localhost/?w=1;journal=true", None),
        ],
    )
    def test_a_connection_string(self, url, database):
        config = checked(url)
        assert (config.url, config.database) == (url, database)

    @pytest.mark.parametrize(
        ("url", "more"),
        [
            (HOST, {"username": "user", "password": "p@:/?#%"}),
            ("mongodb://user@localhost", {"password": "p@:/?#%"}),
            ("mongodb://user:p%40%3A%2F%3F%23%25@localhost", {}),
        ],
    )
    def test_a_user_and_a_password(self, made, url, more):
        credentials = made(url, **more).options.pool_options._credentials
        assert (credentials.username, credentials.password) == ("user", "p@:/?#%")

    def test_the_bound_of_each_call(self):
        for query, milliseconds in {"": None, "?timeoutMS=1500": 1500, "?TIMEOUTms=1": 1}.items():
            assert checked(f"{HOST}/{query}").timeout_ms == milliseconds
        assert checked(f"{HOST}/?timeoutMS=0").timeout_ms is None


class TestWrongNames:
    @pytest.mark.parametrize(
        ("connection", "words"),
        [
            ({}, ["connection.url", "is missing", "mongodb://HOST"]),
            ({"url": None}, ["connection.url", "is missing", "mongodb://HOST"]),
            ({"url": 7}, ["connection.url", "text", "int"]),
            ({"url": ""}, ["connection.url", "is empty"]),
            ({"url": "localhost:27017"}, ["connection.url", "no connection string", "mongodb://HOST"]),
            ({"url": "mongo://localhost"}, ["connection.url", "no connection string", "mongodb://HOST"]),
            ({"url": "mongodb://"}, ["connection.url", "hosts", "mongodb://HOST"]),
            ({"url": "mongodb:///shop"}, ["connection.url", "hosts", "mongodb://HOST"]),
            ({"url": "mongodb://a,,b"}, ["connection.url", "hosts"]),
            ({"url": "mongodb://a:port"}, ["connection.url", "hosts", "quote_plus"]),
            ({"url": "mongodb://a:99999"}, ["connection.url", "hosts"]),
            ({"url": "mongodb+srv://a.b.c:27017"}, ["connection.url", "no port", "mongodb+srv://HOST"]),
            ({"url": "mongodb+srv://a.b.c,d.e.f"}, ["connection.url", "one host", "mongodb+srv://HOST"]),
            ({"url": f"{HOST}/?retryRead=false"}, ["'retryRead'", "did you mean 'retryReads'?"]),
            ({"url": f"{HOST}/?maxPoolSize=many"}, ["'maxPoolSize'", "values that it allows"]),
            ({"url": f"{HOST}/?nonsense=1"}, ["'nonsense'", "known are: appName"]),
            ({"url": f"{HOST}/?retryReads"}, ["NAME=VALUE"]),
            ({"url": f"{HOST}/?datetime_conversion=wrong"}, ["'datetime_conversion'"]),
            ({"url": f"{HOST}/?authSource="}, ["'authSource'", "values that it allows"]),
            ({"url": f"{HOST}/?=1"}, ["NAME=VALUE"]),
            ({"url": f"{HOST}/?tls=true&"}, ["NAME=VALUE"]),
            ({"url": f"{HOST}/?tls=true;w=1&w=2"}, ["NAME=VALUE"]),
            ({"url": f"{HOST}/?w=1&W=2"}, ["'W'", "second time", "once"]),
            ({"url": f"{HOST}/?tlsCAFile=/no/such/file"}, ["'tlsCAFile'", "file that can be read"]),
            ({"url": HOST, "usename": "me"}, ["'usename'", "did you mean 'username'?"]),
            ({"url": HOST, "database": "shop"}, ["'database'", "known are: app_name, password, url, user"]),
            ({"url": HOST, "username": 7}, ["connection.username", "text"]),
            ({"url": HOST, "username": ""}, ["connection.username", "is empty"]),
            ({"url": HOST, "password": SECRET}, ["connection.password", "no user", "username"]),
            ({"url": HOST, "username": "me", "password": ""}, ["connection.password", "is empty"]),
            ({"url": "mongodb://me:pw@a", "password": SECRET}, ["connection.password", "url", "once"]),
            ({"url": "mongodb://me@a", "username": "me"}, ["connection.username", "url", "once"]),
            ({"url": f"{HOST}/?appName=x", "app_name": "y"}, ["connection.app_name", "url", "once"]),
        ],
        ids=str,
    )
    def test_they_name_the_option_and_the_way_out(self, connection, words):
        with refused(*words) as caught:
            MongoConfig.from_client(ClientConfig("mongo", connection))
        assert SECRET not in everything_said(caught.value)

    @pytest.mark.parametrize(
        ("url", "words"),
        [
            ("mongodb://a,b/?directConnection=true", ["multiple hosts", "directConnection"]),
            ("mongodb://a/?loadBalanced=true&replicaSet=rs", ["replicaSet", "loadBalanced"]),
            ("mongodb://a/?srvMaxHosts=2", ["srvMaxHosts", "mongodb+srv://"]),
            ("mongodb://a/?maxPoolSize=2&minPoolSize=5", ["minPoolSize"]),
            ("mongodb://a/?authMechanism=SCRAM-SHA-256", ["SCRAM-SHA-256", "username"]),
            ('mongodb://a/sh"op', ["Bad database name"]),
            ("mongodb://user@a", ["password"]),
        ],
    )
    def test_what_pymongo_does_not_take_together(self, url, words):
        with refused("connection.url", *words):
            checked(url).client(4)


ENCODED = "".join(f"%{ord(letter):02x}" for letter in SECRET)
# A password as a person would type it, and the parts of it that must never be shown.
UNESCAPED = [
    f"mongodb://me:{SECRET}@more@localhost/shop",
    f"mongodb://me:more@{SECRET}@localhost/shop",
    f"mongodb://me:{SECRET}:more@localhost/shop",
    f"mongodb://me:more:{SECRET}@localhost/shop",
    f"mongodb://me:{SECRET}/more@localhost/shop",
    f"mongodb://me:12/{SECRET}@localhost/shop",
    f"mongodb://me:12/{SECRET}@localhost",
    f"mongodb://me:{SECRET}?more@localhost/shop",
    f"mongodb://me:12?{SECRET}=more@localhost/shop",
    f"mongodb://me:12?retryReads={SECRET}@localhost/shop",
    f"mongodb://me:12?authSource={SECRET}@localhost/shop",
    f"mongodb://me:more@x?{SECRET}=more@localhost/shop",
    f"mongodb://me:more@x?{SECRET}@localhost/shop",
    f"mongodb://me:more@x/{SECRET}@localhost/shop",
    f"mongodb://me:{SECRET}%more@localhost/shop",
    f"mongodb://me:{SECRET}%zz@localhost/shop",
    f"mongodb://:{SECRET}@localhost/shop",
    f"mongodb://me:{SECRET}@localhost:port/shop",
    f"mongodb://me:{SECRET}@",
    f"mongodb://me:{SECRET}@/shop",
    f"mongodb://me:{SECRET}@a,,b/shop",
    f"mongodb://me:{SECRET}@a%2Fb/shop",
    f"mongodb+srv://me:{SECRET}@more@cluster.example.net/shop",
    f"mongodb+srv://me:{SECRET}@localhost:27017/shop",
    f"mongodb://me:{SECRET}@localhost/?nonsense={SECRET}",
    f"mongodb://me:{SECRET}@localhost/?authMechanism={SECRET}",
    f"mongodb://me:{ENCODED}@localhost/{ENCODED}%20db",
    f"mongodb://me:pw@localhost/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKN:{SECRET}",
    f"mongodb://me:pw@localhost/?authMechanism=MONGODB-AWS&authMechanismProperties={SECRET}",
    f"mongodb://localhost/?tlsCertificateKeyFilePassword={SECRET}&maxPoolSize=many",
    f"mongodb://localhost/?tlsCertificateKeyFilePassword={SECRET}&tls=false",
    f"mongodb://me:{SECRET}@a,b/?directConnection=true",
    f"mongodb://me:{SECRET}@localhost/bad db",
    f"mongodb://me:{SECRET}@localhost/?authMechanism=MONGODB-X509",
    f"mongodb://:{SECRET}@localhost",
    f"http://me:{SECRET}@localhost",
]


class TestSecrets:
    @pytest.mark.parametrize("url", UNESCAPED)
    def test_no_message_cause_or_context_quotes_one(self, url):
        config = ClientConfig("mongo", {"url": url})
        assert SECRET not in repr(config) + str(config)
        with pytest.raises(MulticloudDbError, match=r"connection\.url") as caught:
            MongoConfig.from_client(config).client(4)
        error = caught.value
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert SECRET not in everything_said(error)
        # `from None` would hide the cause only in a traceback.
        assert error.__cause__ is None
        assert error.__context__ is None

    @pytest.mark.parametrize(
        "more",
        [
            {"url": f"mongodb://me:{SECRET}@a,b/shop?replicaSet=rs"},
            {"url": f"mongodb+srv://me:{SECRET}@a.b.c/shop"},
            {"url": f"{HOST}/?tlsCertificateKeyFilePassword={SECRET}"},
            {"url": f"{HOST}/?replicaSet=rs;tlsCertificateKeyFilePassword={SECRET}"},
            {"url": f"{HOST}/?authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:{SECRET}"},
            {"url": HOST, "username": "me", "password": SECRET},
        ],
        ids=str,
    )
    def test_no_repr_shows_one(self, more):
        config = checked(**more)
        for text in (repr(config), str(config), f"{config}"):
            assert SECRET not in text

    @pytest.mark.parametrize(
        "options",
        [
            "tls=true&tlsCertificateKeyFile={file}&tlsCertificateKeyFilePassword={secret}",
            "authMechanism=MONGODB-AWS&authMechanismProperties=AWS_SESSION_TOKEN:{secret}",
        ],
    )
    def test_none_is_in_a_variable_of_a_frame(self, tmp_path, options):
        """PyMongo's client, whose own repr shows them, is in the frames of what reads with it."""
        key, file = ec.generate_private_key(ec.SECP256R1()), tmp_path / "key.pem"
        name, now = x509.Name([]), datetime(2026, 1, 1, tzinfo=UTC)
        builder = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        hidden = serialization.BestAvailableEncryption(SECRET.encode())
        forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden
        signed = builder.sign(key, hashes.SHA256()).public_bytes(forms[0])
        file.write_bytes(key.private_bytes(*forms) + signed)
        url = "mongodb://localhost:1/?" + options.format(file=file, secret=SECRET)
        request = ChangeFeedRequest(ResourceAddress("shop", "orders"), Now())
        with connect(url) as client, pytest.raises(MulticloudDbError) as caught:
            client.read_changes(request, OperationOptions(timeout_seconds=1.0))
        assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
        shown = shown_by(caught.value, without=__file__)
        assert any("client = <MongoClient" in text for text in shown)
        assert [text for text in shown if SECRET in text] == []


class TestClient:
    def test_nothing_is_connected_or_looked_up(self, monkeypatch, made):
        def no(*_, **__):
            raise AssertionError("a connection, or a question to DNS")

        monkeypatch.setattr(socket.socket, "connect", no)
        monkeypatch.setattr(socket, "getaddrinfo", no)
        monkeypatch.setattr("dns.resolver.resolve", no)
        made("mongodb://a.example.net,b.example.net/?replicaSet=rs")
        made("mongodb+srv://cluster.example.net/")

    def test_it_decodes_as_mapping_needs_it_whatever_the_url_says(self, made):
        options = "tz_aware=false uuidRepresentation=pythonLegacy datetime_conversion=DATETIME_MS "
        for option in ["", *(options + "unicode_decode_error_handler=ignore").split()]:
            assert made(f"{HOST}/?{option}" if option else HOST).codec_options == CODEC
        assert CodecOptions() != CODEC

    def test_everything_else_in_the_url_wins(self, made):
        url = (
            "mongodb://me:pw@a:1,b:2/shop?replicaSet=rs&retryReads=false&retryWrites=false&timeoutMS=7000"
            "&maxPoolSize=3&appName=mine&readPreference=secondaryPreferred&readConcernLevel=local"
            "&connectTimeoutMS=1234&serverSelectionTimeoutMS=4321&authSource=other&compressors=zlib"
        )
        client = made(url, concurrency=50)
        options, pool = client.options, client.options.pool_options
        assert (options.retry_reads, options.retry_writes, options.timeout) == (False, False, 7)
        assert (pool.max_pool_size, pool.appname, pool.connect_timeout) == (3, "mine", 1.234)
        assert (options.replica_set_name, options.server_selection_timeout) == ("rs", 4.321)
        assert client.read_preference.mongos_mode == "secondaryPreferred"
        assert client.read_concern.level == "local"
        assert pool._credentials.source == "other"
        assert client.get_default_database().name == checked(url).database == "shop"

    def test_each_concurrent_call_has_a_connection(self, made):
        for concurrency, least in {1: 100, 32: 100, 500: 501}.items():
            assert made(concurrency=concurrency).options.pool_options.max_pool_size >= least

    def test_a_server_is_awaited_for_longer_than_a_fail_over_and_shorter_than_a_call(self, made):
        given = {"": 15, "serverSelectionTimeoutMS=40000": 40, "SERVERSELECTIONTIMEOUTMS=200": 0.2}
        for query, seconds in {**given, "serverSelectionTimeoutMS=30000": 30}.items():
            client = made(f"{HOST}/?{query}" if query else HOST)
            assert client.options.server_selection_timeout == seconds
        assert 12 < made().options.server_selection_timeout < OperationOptions().timeout_seconds

    def test_a_server_that_refused_a_login_is_looked_at_again_within_a_second(self, made):
        """`docs/tests/test_refusals.py` shows what it is for."""
        assert made().options.heartbeat_frequency == 1
        assert made(f"{HOST}/?heartbeatFrequencyMS=20000").options.heartbeat_frequency == 20


FIELDS = [field.name for field in attrs.fields(MongoOptions) if field.name != "collation"]
GOOD = {
    "full_document": "whenAvailable",
    "full_document_before_change": "off",
    "resume_after": {"_data": "82AB"},
    "start_after": {"_data": "82AB"},
    "start_at_operation_time": Timestamp(1_763_634_171, 1),
    "max_await_time_ms": 1,
    "batch_size": 1,
    "comment": {"any": ["thing"]},
    "show_expanded_events": True,
    "pipeline": ({"$match": {"operationType": "insert"}},),
    "after_invalidate": "follow",
    "allow_missing": True,
}
# The options for which a token that was made with one value must not be used with another value.
POSITIONS = {"pipeline", "show_expanded_events"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 7.5) for name in FIELDS if name != "comment"),
        *((name, object()) for name in FIELDS if name != "comment"),
        ("full_document", True),
        ("resume_after", "82AB"),
        ("start_after", [("_data", "82AB")]),
        ("start_at_operation_time", 1_763_634_171),
        ("max_await_time_ms", True),
        ("max_await_time_ms", 0),
        ("batch_size", "10"),
        ("batch_size", -1),
        ("collation", {"locale": "de"}),  # PyMongo does not send it
        ("show_expanded_events", 1),
        ("pipeline", "[]"),
        ("pipeline", {"$match": {}}),
        ("pipeline", None),
        ("after_invalidate", None),
        ("after_invalidate", "stay"),
        ("allow_missing", None),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(name, value):
    with refused(f"MongoOptions.{name}"):
        MongoOptions(**{name: value})


@pytest.mark.parametrize("stage", ["$match", None, ["$match"]])
def test_a_stage_is_a_mapping_and_the_error_says_which_is_not(stage):
    with refused("MongoOptions.pipeline[1]", type(stage).__name__):
        MongoOptions(pipeline=[{"$match": {}}, stage])


@pytest.mark.parametrize("name", FIELDS)
def test_options_are_values_and_some_are_of_a_token(name):
    one, other = (MongoOptions(**{name: GOOD[name]}) for _ in range(2))
    assert one == other != MongoOptions()
    assert hash(one) == hash(other)
    assert one.position_digest() == other.position_digest()
    assert bool(one.position_digest()) is (name in POSITIONS)


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, True), (1, 1.0), (0, False), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ([1], [True])],
    ids=["truth", "float", "falsehood", "order", "inside"],
)
def test_what_the_server_tells_apart_is_not_equal(one, other):
    """A client uses one stream for equal requests, so a request could get the filter of another request."""
    assert one == other
    assert MongoOptions(pipeline=[{"$match": {"a": one}}]) != MongoOptions(
        pipeline=[{"$match": {"a": other}}]
    )


@pytest.mark.parametrize("name", ["resume_after", "start_after", "pipeline"])
def test_a_mapping_is_a_copy_and_no_token_is_shown(name):
    value = {"a": {"b": [1], "c": "82AB"}}
    options = MongoOptions(**{name: [value] if name == "pipeline" else value})
    value["a"]["b"].append(2)
    kept = getattr(options, name)
    assert (kept[0] if name == "pipeline" else kept) == {"a": {"b": [1], "c": "82AB"}}
    assert not name.endswith("after") or "82AB" not in repr(options)


def test_the_order_of_stages_counts():
    one, other = {"$match": {"a": 1}}, {"$match": {"b": 1}}
    digests = {MongoOptions(pipeline=stages).position_digest() for stages in ([one, other], [other, one])}
    assert len(digests) == 2


class TestPlaintext:
    """PyMongo's default has no TLS, so a URL with a user and nothing else sends it as text."""

    @pytest.fixture(autouse=True)
    def _anew(self, monkeypatch):
        monkeypatch.setattr("multiclouddb_spi.connection._WARNED", {})

    def told(self, caplog, url, **more):
        for _ in range(2):
            PLUGIN.connect(ClientConfig("mongo", {"url": url, **more}), None).close()
        return [each.getMessage() for each in caplog.records if each.name == "multiclouddb.mongo"]

    @pytest.mark.parametrize(
        ("url", "more"),
        [
            (f"mongodb://me:{SECRET}@db.example.com/shop", {}),
            (f"mongodb://me:{SECRET}@localhost,db.example.com:27018/?replicaSet=rs0", {}),
            ("mongodb://db.example.com/shop", {"username": "me", "password": SECRET}),
            (f"mongodb://me:{SECRET}@db.example.com/?tls=false", {}),
            (f"mongodb://me:{SECRET}@192.0.2.1/?ssl=false", {}),
            (f"mongodb+srv://me:{SECRET}@db.example.com/?tls=false", {}),
            ("mongodb://db.example.com/?authMechanism=MONGODB-AWS&authSource=$external", {}),
        ],
    )
    def test_credentials_on_the_way_to_another_machine_are_warned_of_once(self, caplog, url, more):
        [message] = self.told(caplog, url, **more)
        assert "without TLS" in message
        assert "tls=true" in message
        assert ("example.com" in message) is ("example.com" in url)
        assert SECRET not in message
        assert "me:" not in message

    @pytest.mark.parametrize(
        "url",
        [
            "mongodb://db.example.com/shop",
            f"mongodb://me:{SECRET}@db.example.com/?tls=true",
            f"mongodb://me:{SECRET}@db.example.com/?ssl=true",
            f"mongodb+srv://me:{SECRET}@db.example.com/shop",
            f"mongodb://me:{SECRET}@localhost,127.0.0.1:27018,[::1]/shop",
            f"mongodb://me:{SECRET}@%2Ftmp%2Fmongodb-27017.sock/shop",
        ],
    )
    def test_others_are_not(self, caplog, url):
        assert self.told(caplog, url) == []

    def test_a_client_of_the_application_is_its_own(self, caplog):
        with MongoClient(f"mongodb://me:{SECRET}@db.example.com/", connect=False) as client:
            url = f"mongodb://me:{SECRET}@db.example.com/"
            PLUGIN.connect(ClientConfig("mongo", {"url": url}), client).close()
        assert caplog.records == []
