"""Tests HTTPS with a certificate that the server makes, and bearer tokens."""

import asyncio
import gc
import socket
import ssl
import time
import urllib.request
import warnings
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ServiceRequestError
from azure.cosmos import CosmosClient, PartitionKey, aio
from azure.cosmos.exceptions import CosmosHttpResponseError
from urllib3.exceptions import InsecureRequestWarning

from multiclouddb_cosmos_emulator import CosmosEmulator, Drop

LIST = (
    b"GET /dbs HTTP/1.1\r\nHost: localhost\r\nx-ms-version: 2020-07-15\r\nx-ms-date: now\r\n"
    b"Authorization: type%3Daad%26ver%3D1.0%26sig%3Da.bearer.token\r\n\r\n"
)
"""A request whose bearer token belongs to nobody in particular."""


class Credential:
    """A credential whose token does not belong to any user."""

    def get_token(self, *scopes, **more):
        return AccessToken("a.bearer.token", int(time.time()) + 3600)


@contextmanager
def unverified():
    """Suppress a warning: the SDK does not verify the certificate of localhost, and urllib3 warns at each
    request.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRequestWarning)
        yield


@pytest.fixture
def secure():
    with CosmosEmulator(https=True) as server:
        yield server


def test_the_sdk_connects_to_localhost_without_more(secure, connected):
    assert secure.endpoint.startswith("https://localhost:")
    with unverified(), connected(secure.endpoint, secure.key) as client:
        container = client.create_database("shop").create_container("orders", PartitionKey("/pk"))
        container.create_item({"id": "1", "pk": "a"})
        assert [each["id"] for each in container.query_items_change_feed(start_time="Beginning")] == ["1"]


def test_a_token_expires_on_command(secure, connected):
    """The service answers 403/5300, and not 401: Azure/azure-sdk-for-python issue 45886."""
    with unverified(), connected(secure.endpoint, Credential()) as client:
        assert not list(client.list_databases())
        assert secure.expire_tokens() == 1
        with pytest.raises(CosmosHttpResponseError, match="Provided AAD token has been expired") as caught:
            list(client.list_databases())
        assert (caught.value.status_code, caught.value.sub_status) == (403, 5300)
    with unverified(), connected(secure.endpoint, secure.key) as client:
        assert not list(client.list_databases())


def test_the_asynchronous_one_does_as_well(secure):
    async def work():
        async with aio.CosmosClient(secure.endpoint, secure.key) as client:
            database = await client.create_database("shop")
            container = await database.create_container("orders", PartitionKey("/pk"))
            await container.create_item({"id": "1", "pk": "a"})
            assert (await container.read_item("1", "a"))["id"] == "1"

    asyncio.run(work())


def test_whoever_verifies_can_trust_the_certificate(secure):
    context = ssl.create_default_context(cafile=secure.certificate)
    with urllib.request.urlopen(
        f"{secure.endpoint}_emulator/requests", context=context, timeout=10
    ) as answer:
        assert answer.status == 200
    with pytest.raises(OSError, match="certificate verify failed"):
        urllib.request.urlopen(f"{secure.endpoint}_emulator/requests", timeout=10)


def test_the_certificate_is_gone_with_the_server():
    with CosmosEmulator(https=True) as server:
        assert server.certificate.exists()
    assert not server.certificate.exists()


def test_a_dropped_connection_is_closed_with_the_server_although_its_client_stays():
    """A client that doesn't answer the close of a TLS connection must not leave the server's socket open."""
    with warnings.catch_warnings(record=True) as found, CosmosEmulator(https=True) as server:
        warnings.simplefilter("always")
        server.faults.add(Drop(), "ListDatabases")
        context = ssl.create_default_context(cafile=server.certificate)
        address = urlsplit(server.endpoint)
        plain = socket.create_connection((address.hostname, address.port), timeout=10)
        with context.wrap_socket(plain, server_hostname=address.hostname) as client:
            client.sendall(LIST)
            # The first thing that comes is the close, which `read` takes and doesn't answer.
            assert client.read() == b""
            server.stop()
            gc.collect()
    assert [str(each.message) for each in found] == []


def test_plain_http_is_not_spoken(secure):
    with pytest.raises(Exception, match=r".*") as caught:
        CosmosClient(secure.endpoint.replace("https", "http"), secure.key, retry_read=0, retry_total=0)
    assert not isinstance(caught.value, CosmosHttpResponseError)


def test_a_bearer_token_is_taken_as_it_is(secure, connected):
    with unverified(), connected(secure.endpoint, Credential()) as client:
        database = client.create_database("shop")
        container = database.create_container("orders", PartitionKey("/pk"))
        container.create_item({"id": "1", "pk": "a"})
        assert container.read_item("1", "a")["id"] == "1"


def test_the_sdk_sends_a_bearer_token_over_https_only():
    with CosmosEmulator() as server, pytest.raises(ServiceRequestError, match="not permitted for non-TLS"):
        CosmosClient(server.endpoint, Credential())
