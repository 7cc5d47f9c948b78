"""Tests the configuration of a region, the errors for wrong values, and the resulting boto3 clients."""

import functools
import socket

import boto3
import pytest
from botocore.config import Config

from multiclouddb_api import ClientConfig, ErrorCategory, connect
from multiclouddb_conformance import refusals
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo.config import DynamoConfig
from multiclouddb_dynamo.provider import PLUGIN

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYSECRETKEY"
SESSION = boto3.Session(aws_access_key_id="local", aws_secret_access_key=SECRET)
LOCAL = "http://localhost:8000"


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


refused = functools.partial(refusals.refused, ErrorCategory.INVALID_REQUEST)


def checked(**connection):
    return DynamoConfig.from_client(ClientConfig("dynamo", connection))


def made(concurrency=4, **connection):
    """Return the settings of the clients of a connection."""
    config = checked(**connection)
    clients = config.clients(concurrency, config.session or boto3.Session())
    clients.dynamodb.close()
    clients.streams.close()
    return clients.dynamodb.meta, clients.streams.meta


@pytest.mark.parametrize(
    ("connection", "region", "endpoint_url"),
    [
        ({"url": "dynamo://eu-west-1"}, "eu-west-1", None),
        ({"url": "dynamo://eu-west-1/"}, "eu-west-1", None),
        ({"url": f"dynamo://eu-west-1?endpoint_url={LOCAL}"}, "eu-west-1", LOCAL),
        ({"url": "dynamo://us-east-2?endpoint_url=https%3A%2F%2Fv-1.x"}, "us-east-2", "https://v-1.x"),
        ({"url": "dynamo://?endpoint_url=http://[::1]:8000"}, None, "http://[::1]:8000"),
        ({"url": "dynamo://", "region": "eu-west-1"}, "eu-west-1", None),
        ({"url": "dynamo://eu-west-1", "endpoint_url": LOCAL}, "eu-west-1", LOCAL),
        ({"region": "cn-north-1", "endpoint_url": LOCAL}, "cn-north-1", LOCAL),
        ({"region": None, "endpoint_url": None, "session": None, "config": None}, None, None),
        ({}, None, None),
    ],
    ids=str,
)
def test_a_connection_names_a_region_and_an_endpoint(connection, region, endpoint_url):
    found = checked(**connection)
    assert (found.region, found.endpoint_url) == (region, endpoint_url)


NO_ADDRESS = ["connection.endpoint_url", "not an http or https address"]
WRONG = [
    ({"url": "dynamodb://eu-west-1"}, ["connection.url", "'dynamodb'", "dynamo://REGION"]),
    ({"url": "dynamo://localhost:8000"}, ["connection.url", "more than a region", "endpoint_url="]),
    ({"url": "dynamo://eu-west-1/orders"}, ["connection.url", "more than a region"]),
    ({"url": f"dynamo://local:{SECRET[:8]}@eu-west-1"}, ["connection.url", "@", "boto3's own chain"]),
    ({"url": "dynamo://eu-west-1?endpoint=http://x"}, ["'endpoint'", "did you mean 'endpoint_url'?"]),
    ({"url": f"dynamo://eu-west-1?secret={SECRET}"}, ["connection.url", "'secret'", "endpoint_url"]),
    ({"url": "dynamo://eu-west-1?endpoint_url="}, ["connection.endpoint_url", "http://localhost"]),
    ({"url": "dynamo://eu-west-1", "region": "eu-west-1"}, ["region", "the url names it too"]),
    ({"regoin": "eu-west-1"}, ["'regoin'", "did you mean 'region'?"]),
    (
        {"table": "orders"},
        ["'table'", "known are: allow_plaintext, config, endpoint_url"],
    ),
    ({"region": 7}, ["connection.region", "7", "'eu-west-1'"]),
    ({"region": " "}, ["connection.region", "'eu-west-1'"]),
    ({"endpoint_url": b"http://x"}, ["connection.endpoint_url", f"'{LOCAL}'"]),
    ({"endpoint_url": "localhost:8000"}, NO_ADDRESS),
    ({"endpoint_url": "ftp://localhost"}, NO_ADDRESS),
    ({"endpoint_url": "http://"}, NO_ADDRESS),
    ({"endpoint_url": "http://[::1"}, NO_ADDRESS),
    ({"endpoint_url": "http://localhost:99999"}, NO_ADDRESS),
    ({"endpoint_url": f"http://local:{SECRET[:8]}@x"}, ["connection.endpoint_url", "boto3's own"]),
    ({"session": "default"}, ["connection.session", "str", "boto3.Session"]),
    ({"config": {"read_timeout": 3}}, ["connection.config", "dict", "botocore.config.Config"]),
    ({"aws_secret_access_key": SECRET}, ["'aws_secret_access_key'", "boto3's own chain", "AWS_PROFILE"]),
    ({"aws_session_token": SECRET}, ["'aws_session_token'", "boto3's own chain", "Session"]),
    ({"profile_name": SECRET}, ["'profile_name'", "boto3's own chain"]),
    ({"PASSWORD": SECRET}, ["'PASSWORD'", "boto3's own chain"]),
    ({"region": "eu_west_1"}, ["region", "dynamo://eu-west-1"]),
    ({"region": "-"}, ["region", "dynamo://eu-west-1"]),
    ({}, ["region", "dynamo://eu-west-1"]),
]


@pytest.mark.parametrize(("connection", "words"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_connection_is_named_with_the_way_out(connection, words):
    config = ClientConfig("dynamo", connection)
    with refused(*words) as caught:
        connect(config)
    assert SECRET[:8] not in str(caught.value) + repr(caught.value)
    assert SECRET not in repr(config)


def test_a_profile_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with refusals.refused(ErrorCategory.AUTHENTICATION_FAILED, "nobody"):
        connect("dynamo://eu-west-1")


class TestBotoClients:
    def test_they_are_of_the_region_and_at_the_endpoint(self):
        for meta in made(url=f"dynamo://eu-west-1?endpoint_url={LOCAL}"):
            assert (meta.region_name, meta.endpoint_url) == ("eu-west-1", LOCAL)
        dynamodb, streams = made(url="dynamo://eu-west-1")
        assert dynamodb.endpoint_url == "https://dynamodb.eu-west-1.amazonaws.com"
        assert streams.endpoint_url == "https://streams.dynamodb.eu-west-1.amazonaws.com"

    def test_missing_settings_come_from_boto3_s_own_chain(self, monkeypatch, tmp_path):
        def regions(**connection):
            return {meta.region_name for meta in made(**connection)}

        (tmp_path / "config").write_text(
            "[default]\nregion = eu-central-1\n[profile other]\nregion = eu-north-1\n"
        )
        assert regions() == {"eu-central-1"}
        monkeypatch.setenv("AWS_PROFILE", "other")
        assert regions() == {"eu-north-1"}
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
        assert regions(url="dynamo://") == {"us-west-2"}
        assert regions(url="dynamo://eu-west-1") == {"eu-west-1"}
        assert regions(session=boto3.Session(region_name="ap-south-1")) == {"ap-south-1"}
        monkeypatch.setenv("AWS_ENDPOINT_URL", LOCAL)
        assert {meta.endpoint_url for meta in made(region="eu-west-1")} == {LOCAL}

    @pytest.mark.parametrize("concurrency", [1, 500])
    def test_each_concurrent_call_has_a_connection(self, concurrency):
        for meta in made(concurrency, region="eu-west-1"):
            assert meta.config.max_pool_connections >= concurrency

    def test_botocore_retries_nothing_and_waits_not_for_ever(self, monkeypatch):
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
        for config in (None, Config(user_agent_appid="mine")):
            for meta in made(region="eu-west-1", config=config):
                assert meta.config.retries["total_max_attempts"] == 1
                assert meta.config.connect_timeout + meta.config.read_timeout <= 15

    def test_the_application_s_config_is_kept_and_then_we_retry_nothing(self):
        config = Config(retries={"mode": "adaptive", "total_max_attempts": 4}, read_timeout=3, proxies={})
        for meta in made(region="eu-west-1", config=config):
            assert meta.config.retries == {"mode": "adaptive", "total_max_attempts": 4}
            assert (meta.config.read_timeout, meta.config.connect_timeout) == (3, 5)
            assert meta.config.max_pool_connections >= 4
        for asked, vendor_retried in ((config, True), (Config(read_timeout=3), False), (None, False)):
            provider = PLUGIN.connect(ClientConfig("dynamo", {"region": "eu-west-1", "config": asked}), None)
            assert provider.classify(ConnectionError("down")).vendor_retried is vendor_retried
            provider.close()

    def test_connecting_opens_no_connection(self, monkeypatch):
        def no(*_):
            raise AssertionError("a connection at connect")

        monkeypatch.setattr(socket.socket, "connect", no)
        monkeypatch.setattr(socket, "getaddrinfo", no)
        connect("dynamo://eu-west-1").close()
        connect(f"dynamo://eu-west-1?endpoint_url={LOCAL}").close()


@pytest.mark.parametrize("of_table", [False, True])
def test_the_client_of_a_resource_is_refused(of_table):
    """It looks like any other client, but it converts keys and items: a look-up would ask for a map."""
    resource = SESSION.resource("dynamodb", region_name="eu-west-1")
    streams = SESSION.client("dynamodbstreams", region_name="eu-west-1")
    with refused("DynamoClients.dynamodb", "boto3 resource", 'pass boto3.client("dynamodb")'):
        DynamoClients((resource.Table("orders") if of_table else resource).meta.client, streams)


def test_handlers_of_the_application_are_no_reason_to_refuse_its_client():
    def fail(**_):
        raise KeyError("a request of the application")

    dynamodb, streams = (
        SESSION.client(name, region_name="eu-west-1") for name in ("dynamodb", "dynamodbstreams")
    )
    dynamodb.meta.events.register("before-parameter-build.dynamodb", fail)
    assert DynamoClients(dynamodb, streams).dynamodb is dynamodb


def test_native_clients_are_two_each_of_its_service():
    dynamodb, streams = (
        SESSION.client(name, region_name="eu-west-1") for name in ("dynamodb", "dynamodbstreams")
    )
    clients = DynamoClients(dynamodb, streams)
    assert SECRET not in repr(clients)
    connect("dynamo://", native_client=clients).close()
    for pair, words in [
        ((streams, streams), ("DynamoClients.dynamodb", 'boto3.client("dynamodb")')),
        ((dynamodb, dynamodb), ("DynamoClients.streams", 'boto3.client("dynamodbstreams")')),
        ((dynamodb, None), ("DynamoClients.streams", "NoneType")),
        ((SESSION, streams), ("DynamoClients.dynamodb", "Session")),
    ]:
        with refused(*words):
            DynamoClients(*pair)
    for other in (dynamodb, SESSION, "client"):
        with refused("native_client", type(other).__name__, "DynamoClients(dynamodb=…, streams=…)"):
            connect("dynamo://eu-west-1", native_client=other)
    dynamodb.close()
    streams.close()
