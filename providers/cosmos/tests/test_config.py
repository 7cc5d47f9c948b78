"""Tests how the configuration names an account, and which credential is used."""

import pickle

import pytest
from azure.identity import DefaultAzureCredential

from multiclouddb_api import ClientConfig, ErrorCategory, MulticloudDbError, connect
from multiclouddb_cosmos.config import CosmosConfig


class Credential:
    def get_token(self, *scopes, **more):
        raise AssertionError


def checked(**connection):
    return CosmosConfig.from_client(ClientConfig("cosmos", connection))


@pytest.mark.parametrize(
    ("url", "endpoint", "local"),
    [
        ("cosmos://a.documents.azure.com", "https://a.documents.azure.com/", False),
        ("cosmos://a.documents.azure.com/", "https://a.documents.azure.com/", False),
        ("cosmos://localhost:8081?tls=false", "http://localhost:8081/", True),
        ("cosmos://localhost:8081", "https://localhost:8081/", True),
        ("cosmos://emulator:8081?tls=FALSE", "http://emulator:8081/", True),
        ("cosmos://[::1]:8081?tls=true", "https://[::1]:8081/", True),
    ],
)
def test_what_a_url_names(url, endpoint, local):
    config = checked(url=url)
    assert (config.endpoint, config.is_local) == (endpoint, local)


def test_the_key_comes_from_the_environment(key):
    assert str(checked(url="cosmos://a").find_credential()).endswith("==")


def test_a_credential_of_the_application_comes_first():
    mine = Credential()
    assert checked(url="cosmos://a", credential=mine).find_credential() is mine


def test_without_a_key_azure_identity_finds_one(monkeypatch):
    monkeypatch.delenv("AZURE_COSMOS_KEY")
    assert isinstance(checked(url="cosmos://a").find_credential(), DefaultAzureCredential)


def test_a_key_that_is_none_is_refused_without_showing_it(monkeypatch):
    monkeypatch.setenv("AZURE_COSMOS_KEY", "not base64!")
    with pytest.raises(MulticloudDbError, match="AZURE_COSMOS_KEY") as caught:
        checked(url="cosmos://a").find_credential()
    assert "not base64!" not in str(caught.value)


@pytest.mark.parametrize(
    ("connection", "named"),
    [
        ({}, "connection.url"),
        ({"url": 1}, "connection.url"),
        ({"url": "cosmos://"}, "host"),
        ({"url": "https://a"}, "scheme"),
        ({"url": "cosmos://a/db"}, "host"),
        ({"url": "cosmos://key@a"}, "password"),
        ({"url": "cosmos://a?tls=maybe"}, "connection.tls"),
        ({"url": "cosmos://a?tsl=false"}, "tsl"),
        ({"url": "cosmos://a?tls=true", "tls": True}, "second time"),
        ({"url": "cosmos://a", "key": "x"}, "AZURE_COSMOS_KEY"),
        ({"url": "cosmos://a", "account_token": "x"}, "AZURE_COSMOS_KEY"),
        ({"url": "cosmos://a", "region": "x"}, "region"),
        ({"url": "cosmos://a", "credential": "x"}, "connection.credential"),
    ],
)
def test_what_is_wrong_is_named(connection, named):
    with pytest.raises(MulticloudDbError) as caught:
        checked(**connection)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert named in caught.value.message


def test_a_configuration_pickles():
    config = ClientConfig("cosmos", {"url": "cosmos://a"})
    assert pickle.loads(pickle.dumps(config)) == config


def test_another_client_is_refused():
    with pytest.raises(MulticloudDbError, match="CosmosClient"):
        connect("cosmos://a", native_client=object())


def test_connecting_asks_nobody():
    connect("cosmos://nowhere.invalid").close()
