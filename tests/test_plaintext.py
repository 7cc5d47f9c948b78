"""Tests that nothing reaches another machine without TLS unless the configuration says so twice."""

import pytest

from multiclouddb_api import ClientConfig, ErrorCategory, MulticloudDbError, open_checkpoint_store
from multiclouddb_cosmos.config import CosmosConfig
from multiclouddb_dynamo.config import DynamoConfig
from multiclouddb_spanner.config import SpannerConfig
from multiclouddb_spi.connection import is_loopback

from .refusals import refusal

URLS = {
    "cosmos": (CosmosConfig, "cosmos://{}?tls=false"),
    "dynamo": (DynamoConfig, "dynamo://eu-west-1?endpoint_url=http://{}"),
    "spanner": (SpannerConfig, "spanner://p/i?emulator_host={}"),
}
STORES = (
    "s3://bucket/p?region=eu-west-1&endpoint_url=http://{}",
    "dynamodb://table/p?region=eu-west-1&endpoint_url=http://{}",
    "azblob://account/container/p?endpoint_url=http://{}",
)
LOCAL = ("localhost:8081", "127.0.0.1:8081", "127.8.0.1:9", "[::1]:8081", "LOCALHOST:80")
REMOTE = ("emulator:8081", "10.0.0.7:8081", "localhost.example.com:80", "[fe80::1]:80", "192.168.1.2:9")


def of_url(name, host, more=""):
    kind, url = URLS[name]
    return kind.from_client(ClientConfig(name, {"url": url.format(host) + more}))


@pytest.mark.parametrize("name", URLS)
class TestProviders:
    @pytest.mark.parametrize("host", LOCAL)
    def test_this_machine_needs_no_second_word(self, name, host):
        if "[" in host and name == "spanner":
            host = "[::1]:9010"
        assert of_url(name, host)

    @pytest.mark.parametrize("host", REMOTE)
    def test_another_machine_needs_a_second_word(self, name, host):
        error = refusal(of_url, name, host)
        assert error.category == ErrorCategory.INVALID_REQUEST
        assert "without TLS" in error.message
        assert "allow_plaintext=true" in error.message
        assert of_url(name, host, "&allow_plaintext=true") == of_url(name, host, "&allow_plaintext=TRUE")
        assert refusal(of_url, name, host, "&allow_plaintext=false").message == error.message

    def test_another_word_is_refused(self, name):
        assert "allow_plaintext: is 'yes'" in refusal(of_url, name, REMOTE[0], "&allow_plaintext=yes").message

    def test_in_the_options_of_a_configuration(self, name):
        kind, url = URLS[name]
        connection = {"url": url.format(REMOTE[0]), "allow_plaintext": True}
        assert kind.from_client(ClientConfig(name, connection))


def test_with_tls_no_word_is_needed():
    assert CosmosConfig.from_client(ClientConfig("cosmos", {"url": "cosmos://account.documents.azure.com"}))
    url = "dynamo://eu-west-1?endpoint_url=https://dynamodb.example.com"
    assert DynamoConfig.from_client(ClientConfig("dynamo", {"url": url}))


@pytest.mark.parametrize("url", STORES)
def test_checkpoint_stores_need_it_too(url):
    for host in LOCAL:
        assert open_checkpoint_store(url.format(host))
    for host in REMOTE:
        with pytest.raises(MulticloudDbError, match=r"checkpoint_store.endpoint_url: reaches .* without TLS"):
            open_checkpoint_store(url.format(host))
        assert open_checkpoint_store(url.format(host) + "&allow_plaintext=true")


@pytest.mark.parametrize(("host", "local"), [("::1", True), ("", False), (None, False), ("0.0.0.0", False)])
def test_which_host_is_this_machine(host, local):
    assert is_loopback(host) is local
