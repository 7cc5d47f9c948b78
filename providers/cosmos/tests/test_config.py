"""Tests how the configuration names an account, and which credential is used."""

import logging
import traceback

import pytest
from azure.identity import DefaultAzureCredential

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    MulticloudDbError,
    Now,
    ResourceAddress,
    connect,
)
from multiclouddb_cosmos.config import CosmosConfig
from testing.frames import shown_by


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
        ("cosmos://emulator:8081?tls=FALSE&allow_plaintext=true", "http://emulator:8081/", True),
        ("cosmos://[::1]:8081?tls=true", "https://[::1]:8081/", True),
    ],
)
def test_what_a_url_names(url, endpoint, local):
    config = checked(url=url)
    assert (config.endpoint, config.is_local) == (endpoint, local)


def test_a_credential_comes_from_the_application_the_environment_or_azure(monkeypatch):
    mine = Credential()
    assert checked(url="cosmos://a", credential=mine).find_credential() is mine
    assert str(checked(url="cosmos://a").find_credential()).endswith("==")
    monkeypatch.setenv("AZURE_COSMOS_KEY", "not base64!")
    with pytest.raises(MulticloudDbError, match="AZURE_COSMOS_KEY") as caught:
        checked(url="cosmos://a").find_credential()
    assert "not base64!" not in str(caught.value)
    monkeypatch.delenv("AZURE_COSMOS_KEY")
    assert isinstance(checked(url="cosmos://a").find_credential(), DefaultAzureCredential)


def test_the_password_of_a_proxy_is_shown_nowhere(monkeypatch, caplog):
    """urllib3 quotes what it takes for the address's host: the password up to a character that it ends at."""
    caplog.set_level(logging.INFO)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:correct/horse@localhost:1")
    request = ChangeFeedRequest(ResourceAddress("shop", "orders"), Now())
    with connect("cosmos://a.documents.azure.com") as client, pytest.raises(MulticloudDbError) as caught:
        client.read_changes(request)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert "check HTTPS_PROXY" in caught.value.message
    said = "".join(traceback.format_exception(caught.value)) + repr(caught.value.detail) + caplog.text
    assert "me:correct" not in said


def test_a_broken_certificate_is_shown_nowhere(monkeypatch, tmp_path):
    """azure-identity has the certificate and its password in its frames when it refuses them."""
    secret = "correct-horse-battery"
    file = tmp_path / "certificate.pem"
    file.write_text(secret)
    monkeypatch.delenv("AZURE_COSMOS_KEY")
    for name, value in {"TENANT_ID": "00000000-0000-0000-0000-000000000000", "CLIENT_ID": "me"}.items():
        monkeypatch.setenv(f"AZURE_{name}", value)
    monkeypatch.setenv("AZURE_CLIENT_CERTIFICATE_PATH", str(file))
    monkeypatch.setenv("AZURE_CLIENT_CERTIFICATE_PASSWORD", secret)
    request = ChangeFeedRequest(ResourceAddress("shop", "orders"), Now())
    with connect("cosmos://a") as client, pytest.raises(MulticloudDbError) as caught:
        client.read_changes(request)
    assert caught.value.category == ErrorCategory.INVALID_REQUEST
    assert "correct the variables AZURE_" in caught.value.message
    assert [text for text in shown_by(caught.value, without=__file__) if secret in text] == []


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


def test_connecting_asks_nobody_and_takes_only_its_own_kind_of_client():
    connect("cosmos://nowhere.invalid").close()
    with pytest.raises(MulticloudDbError, match="CosmosClient"):
        connect("cosmos://a", native_client=object())
