"""Tests the configuration of a region, the errors for wrong values, and the resulting boto3 clients."""

import functools
import socket

import boto3
import pytest
from botocore.config import Config

from multiclouddb_api import ClientConfig, ErrorCategory, MulticloudDbError, connect
from multiclouddb_conformance import refusals
from multiclouddb_dynamo import DynamoClients
from multiclouddb_dynamo.config import DynamoConfig
from multiclouddb_dynamo.provider import PLUGIN

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYSECRETKEY"
SESSION = boto3.Session(aws_access_key_id="local", aws_secret_access_key=SECRET)


@pytest.fixture(autouse=True)
def nothing_from_this_machine(monkeypatch, tmp_path):
    """Hide all boto3 settings except those of the test."""
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


refused = functools.partial(refusals.refused, ErrorCategory.INVALID_REQUEST)


def checked(**connection):
    return DynamoConfig.from_client(ClientConfig("dynamo", connection))


def made(concurrency=4, **connection):
    """Return the closed clients of a connection, so that a test can check their settings."""
    clients = checked(**connection).clients(concurrency)
    clients.dynamodb.close()
    clients.streams.close()
    return clients.dynamodb.meta, clients.streams.meta


@pytest.fixture
def both():
    clients = [
        SESSION.client(service, region_name="eu-west-1") for service in ("dynamodb", "dynamodbstreams")
    ]
    yield clients
    for client in clients:
        client.close()


class TestNaming:
    @pytest.mark.parametrize(
        ("connection", "region", "endpoint_url"),
        [
            ({"url": "dynamo://eu-west-1"}, "eu-west-1", None),
            ({"url": "dynamo://eu-west-1/"}, "eu-west-1", None),
            (
                {"url": "dynamo://eu-west-1?endpoint_url=http://localhost:8000"},
                "eu-west-1",
                "http://localhost:8000",
            ),
            (
                {"url": "dynamo://us-east-2?endpoint_url=https%3A%2F%2Fvpce-1.example"},
                "us-east-2",
                "https://vpce-1.example",
            ),
            ({"url": "dynamo://"}, None, None),
            ({"url": "dynamo://?endpoint_url=http://[::1]:8000"}, None, "http://[::1]:8000"),
            ({"url": "dynamo://", "region": "eu-west-1"}, "eu-west-1", None),
            (
                {"url": "dynamo://eu-west-1", "endpoint_url": "http://localhost"},
                "eu-west-1",
                "http://localhost",
            ),
            (
                {"region": "cn-north-1", "endpoint_url": "http://localhost:8000"},
                "cn-north-1",
                "http://localhost:8000",
            ),
            ({"region": None, "endpoint_url": None, "session": None, "config": None}, None, None),
            ({}, None, None),
        ],
        ids=str,
    )
    def test_a_region_and_an_endpoint(self, connection, region, endpoint_url):
        found = checked(**connection)
        assert (found.region, found.endpoint_url) == (region, endpoint_url)

    def test_by_toml(self, tmp_path):
        place = tmp_path / "client.toml"
        place.write_text('provider = "dynamo"\n[connection]\nregion = "eu-west-1"\n')
        assert DynamoConfig.from_client(ClientConfig.from_toml(place)).region == "eu-west-1"
        connect(place).close()


class TestWrongNames:
    @pytest.mark.parametrize(
        ("connection", "words"),
        [
            ({"url": "dynamodb://eu-west-1"}, ["connection.url", "'dynamodb'", "dynamo://REGION"]),
            ({"url": "dynamo://localhost:8000"}, ["connection.url", "more than a region", "endpoint_url="]),
            ({"url": "dynamo://eu-west-1/orders"}, ["connection.url", "more than a region"]),
            ({"url": f"dynamo://local:{SECRET[:8]}@eu-west-1"}, ["connection.url", "@", "boto3's own chain"]),
            ({"url": "dynamo://eu-west-1?endpoint=http://x"}, ["'endpoint'", "did you mean 'endpoint_url'?"]),
            ({"url": f"dynamo://eu-west-1?secret={SECRET}"}, ["connection.url", "'secret'", "endpoint_url"]),
            ({"url": "dynamo://eu-west-1?endpoint_url="}, ["connection.endpoint_url", "http://localhost"]),
            (
                {"url": "dynamo://eu-west-1", "region": "eu-west-1"},
                ["region", "the url names it too", "name it once"],
            ),
            (
                {"url": "dynamo://?endpoint_url=http://a", "endpoint_url": "http://a"},
                ["endpoint_url", "the url names it too", "name it once"],
            ),
            ({"regoin": "eu-west-1"}, ["'regoin'", "did you mean 'region'?"]),
            ({"table": "orders"}, ["'table'", "known are: config, endpoint_url, region, session, url"]),
            ({"region": 7}, ["connection.region", "7", "'eu-west-1'"]),
            ({"region": " "}, ["connection.region", "'eu-west-1'"]),
            ({"endpoint_url": b"http://x"}, ["connection.endpoint_url", "'http://localhost:8000'"]),
            ({"endpoint_url": "localhost:8000"}, ["connection.endpoint_url", "not an http or https address"]),
            (
                {"endpoint_url": "ftp://localhost"},
                ["connection.endpoint_url", "not an http or https address"],
            ),
            ({"endpoint_url": "http://"}, ["connection.endpoint_url", "not an http or https address"]),
            ({"endpoint_url": "http://[::1"}, ["connection.endpoint_url", "not an http or https address"]),
            ({"endpoint_url": "http://localhost:port"}, ["connection.endpoint_url", "not an http or https"]),
            ({"endpoint_url": "http://localhost:99999"}, ["connection.endpoint_url", "not an http or https"]),
            ({"endpoint_url": f"http://local:{SECRET[:8]}@x"}, ["connection.endpoint_url", "boto3's own"]),
            ({"session": "default"}, ["connection.session", "str", "boto3.Session"]),
            ({"config": {"read_timeout": 3}}, ["connection.config", "dict", "botocore.config.Config"]),
        ],
        ids=str,
    )
    def test_they_name_the_option_and_the_way_out(self, connection, words):
        with refused(*words) as caught:
            checked(**connection)
        assert SECRET[:8] not in str(caught.value) + repr(caught.value)

    @pytest.mark.parametrize(
        "name",
        ["aws_secret_access_key", "aws_access_key_id", "aws_session_token", "profile_name", "PASSWORD"],
    )
    def test_a_secret_is_refused_and_not_repeated(self, name):
        config = ClientConfig("dynamo", {"region": "eu-west-1", name: SECRET})
        with refused(repr(name), "boto3's own chain", "AWS_PROFILE", "Session") as caught:
            connect(config)
        assert SECRET not in str(caught.value) + repr(caught.value) + repr(config)

    @pytest.mark.parametrize("region", ["eu_west_1", "eu west", "-"])
    def test_a_region_that_is_none(self, region):
        with refused("region", "dynamo://eu-west-1"):
            connect(ClientConfig("dynamo", {"region": region}))

    def test_no_region_anywhere(self):
        with refused("region", "dynamo://eu-west-1"):
            connect("dynamo://")

    def test_a_profile_that_is_not_there(self, monkeypatch):
        monkeypatch.setenv("AWS_PROFILE", "nobody")
        with pytest.raises(MulticloudDbError, match="nobody") as caught:
            connect("dynamo://eu-west-1")
        assert caught.value.category == ErrorCategory.AUTHENTICATION_FAILED


class TestBotoClients:
    def test_they_are_of_the_region_and_at_the_endpoint(self):
        for meta in made(url="dynamo://eu-west-1?endpoint_url=http://localhost:8000"):
            assert (meta.region_name, meta.endpoint_url) == ("eu-west-1", "http://localhost:8000")
        dynamodb, streams = made(url="dynamo://eu-west-1")
        assert dynamodb.endpoint_url == "https://dynamodb.eu-west-1.amazonaws.com"
        assert streams.endpoint_url == "https://streams.dynamodb.eu-west-1.amazonaws.com"

    def test_the_region_comes_from_boto3_s_own_chain(self, monkeypatch, tmp_path):
        (tmp_path / "config").write_text(
            "[default]\nregion = eu-central-1\n[profile other]\nregion = eu-north-1\n"
        )
        assert [meta.region_name for meta in made()] == ["eu-central-1"] * 2
        monkeypatch.setenv("AWS_PROFILE", "other")
        assert [meta.region_name for meta in made()] == ["eu-north-1"] * 2
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
        assert [meta.region_name for meta in made(url="dynamo://")] == ["us-west-2"] * 2
        assert [meta.region_name for meta in made(url="dynamo://eu-west-1")] == ["eu-west-1"] * 2
        session = boto3.Session(region_name="ap-south-1")
        assert [meta.region_name for meta in made(session=session)] == ["ap-south-1"] * 2

    def test_the_endpoint_comes_from_boto3_s_own_chain(self, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:8000")
        assert [meta.endpoint_url for meta in made(region="eu-west-1")] == ["http://localhost:8000"] * 2

    @pytest.mark.parametrize("concurrency", [1, 32, 500])
    def test_each_concurrent_call_has_a_connection(self, concurrency):
        for meta in made(concurrency, region="eu-west-1"):
            assert meta.config.max_pool_connections >= concurrency

    def test_botocore_retries_nothing_and_waits_not_for_ever(self, monkeypatch):
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
        for config in (None, Config(user_agent_appid="mine")):
            assert not checked(config=config).own_retries
            for meta in made(region="eu-west-1", config=config):
                assert meta.config.retries["total_max_attempts"] == 1
                assert meta.config.connect_timeout + meta.config.read_timeout <= 15

    def test_the_application_s_config_is_kept_and_then_we_retry_nothing(self):
        config = Config(retries={"mode": "adaptive", "total_max_attempts": 4}, read_timeout=3, proxies={})
        assert checked(config=config).own_retries
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
        connect("dynamo://eu-west-1?endpoint_url=http://localhost:8000").close()


class TestNativeClient:
    def test_it_has_both_clients(self, both):
        clients = DynamoClients(*both)
        assert SECRET not in repr(clients)
        with connect("dynamo://", native_client=clients):
            pass

    def test_each_has_to_be_of_its_service(self, both):
        dynamodb, streams = both
        with refused("DynamoClients.dynamodb", 'boto3.client("dynamodb")'):
            DynamoClients(streams, streams)
        with refused("DynamoClients.streams", 'boto3.client("dynamodbstreams")'):
            DynamoClients(dynamodb, dynamodb)
        with refused("DynamoClients.streams", "NoneType"):
            DynamoClients(dynamodb, None)
        with refused("DynamoClients.dynamodb", "Session"):
            DynamoClients(SESSION, streams)

    def test_anything_else_is_refused(self, both):
        for other in (both[0], SESSION, "client"):
            with refused("native_client", type(other).__name__, "DynamoClients(dynamodb=…, streams=…)"):
                connect("dynamo://eu-west-1", native_client=other)
