"""Tests how soon each provider reports that the service refuses, or that its host is unknown.

The table in docs/how-to/troubleshooting.md contains the same causes, providers and categories.
"""

import contextlib
import functools
import os
import re
import socket
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

import attrs
import pytest
from azure.cosmos import CosmosClient, PartitionKey
from google.cloud.spanner import Client
from google.oauth2.credentials import Credentials

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    ErrorCategory,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    OperationOptions,
    ResourceAddress,
    connect,
)
from multiclouddb_conformance.waiting import assert_prompt, wait_until
from multiclouddb_cosmos_emulator import CosmosEmulator, Fail
from multiclouddb_dynamo_emulator import ScriptedStreams
from multiclouddb_embedded import EmbeddedStore
from multiclouddb_spanner_emulator import ScriptedSpanner

from .front import Front
from .page import ROOT, servers

# The limit that the page promises. The iterator would try again for much longer.
SECONDS = 2.0
OUTAGE_SECONDS = 20.0
NO_HOST = "no-such-host.invalid"
NOBODY = 65534
ITEMS = ResourceAddress("main", "items")


@attrs.frozen
class Place:
    """A service, with a collection that can be read.

    Attributes:
        address: The collection.
        config: Makes the configuration of a client, given whether it connects with TLS and the host's name.
        refusing: Maps each cause to a context in which the service refuses new requests for this reason.
    """

    address: ResourceAddress
    config: object
    refusing: dict

    def client(self, cause, host="localhost"):
        made = self.config(cause == "TLS", host)
        return connect(made[0], native_client=made[1]) if isinstance(made, tuple) else connect(made)


@contextlib.contextmanager
def mongodb(folder):
    mongod = servers("mongo")("mongod")
    quick = {"scramSHA256IterationCount": 5000}
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(mongod.ReplicaSet(folder / "mongod", auth=True, parameters=quick))
        shop = made.client()["shop"]
        shop.create_collection("orders")
        shop.command("createUser", "reader", pwd="right", roles=["read"], mechanisms=["SCRAM-SHA-256"])
        plain, tls = fronts(stack, folder, made.members[0])

        def config(with_tls, host):
            front, more = (tls, f"&tls=true&tlsCAFile={tls.certificate}") if with_tls else (plain, "")
            url = f"mongodb://reader:right@{host}:{front.port}/?authSource=shop&directConnection=true{more}"
            return ClientConfig("mongo", {"url": url})

        @contextlib.contextmanager
        def change(command, back, **after):
            shop.command(command, "reader", **after)
            plain.cut()
            try:
                yield
            finally:
                shop.command(*back, **({"pwd": "right"} if command == "updateUser" else after))

        yield Place(
            ResourceAddress("shop", "orders"),
            config,
            {
                "wrong password or key": lambda: change("updateUser", ("updateUser", "reader"), pwd="other"),
                "no permission": lambda: change(
                    "revokeRolesFromUser", ("grantRolesToUser", "reader"), roles=["read"]
                ),
                **networks(plain, tls),
            },
        )


def fronts(stack, folder, target):
    """Return a front without TLS and one with TLS for a service."""
    return stack.enter_context(Front(target)), stack.enter_context(Front(target, folder))


def networks(plain, tls):
    """Return the causes that lie between a client and a service."""

    @contextlib.contextmanager
    def wrong_certificate():
        with tls.wrong_certificate():
            tls.cut()
            yield

    @contextlib.contextmanager
    def nameless():
        known = socket.getaddrinfo

        def unknown(host, *args, **rest):
            if host == "localhost":
                raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
            return known(host, *args, **rest)

        with mock.patch.object(socket, "getaddrinfo", unknown):
            plain.cut()
            yield

    return {"TLS": wrong_certificate, "unknown host": nameless}


@contextlib.contextmanager
def dynamodb(folder):
    server = servers("dynamo")("server")
    with contextlib.ExitStack() as stack:
        script = stack.enter_context(ScriptedStreams())
        made = stack.enter_context(server.Server(script.endpoint_url))
        made.create_table("orders")
        plain, tls = fronts(stack, folder, script.endpoint_url.removeprefix("http://"))
        trusted = {**server.CREDENTIALS, "AWS_CA_BUNDLE": str(tls.certificate)}
        stack.enter_context(mock.patch.dict(os.environ, trusted))

        def config(with_tls, host):
            scheme, port = ("https", tls.port) if with_tls else ("http", plain.port)
            return ClientConfig(
                "dynamo", {"region": "eu-west-1", "endpoint_url": f"{scheme}://{host}:{port}"}
            )

        def failing(code):
            return scripted(script.troubles, lambda: script.troubles.fail(None, code, times=None))

        refusing = {
            "wrong password or key": lambda: failing("UnrecognizedClientException"),
            "no permission": lambda: failing("AccessDeniedException"),
        }
        yield Place(ResourceAddress(collection="orders"), config, refusing | networks(plain, tls))


@contextlib.contextmanager
def scripted(troubles, fail):
    """Let a server answer every call with an error."""
    fail()
    try:
        yield
    finally:
        troubles.end()


@contextlib.contextmanager
def spanner(folder):
    database = "projects/shop/instances/main/databases/shop"
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(ScriptedSpanner())
        made.create(
            database,
            "CREATE TABLE orders (id STRING(MAX) NOT NULL) PRIMARY KEY (id)",
            "CREATE CHANGE STREAM orders_stream FOR orders OPTIONS (value_capture_type = 'NEW_ROW')",
        )
        plain, tls = fronts(stack, folder, made.host)
        trusted = {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(tls.certificate)}
        stack.enter_context(mock.patch.dict(os.environ, trusted))

        def config(with_tls, host):
            names = {"project": "shop", "instance": "main"}
            if not with_tls:
                return ClientConfig("spanner", names | {"emulator_host": f"{host}:{plain.port}"})
            # With the credentials of an emulator, the client would not use TLS.
            settings = {"credentials": Credentials("token"), "disable_builtin_metrics": True}
            native = Client("shop", client_options={"api_endpoint": f"127.0.0.1:{tls.port}"}, **settings)
            return ClientConfig("spanner", names), native

        def failing(status):
            return scripted(made.troubles, lambda: made.troubles.fail(None, status, times=None))

        refusing = {
            "wrong password or key": lambda: failing("UNAUTHENTICATED"),
            "no permission": lambda: failing("PERMISSION_DENIED"),
        }
        yield Place(ResourceAddress("shop", "orders"), config, refusing | networks(plain, tls))


@contextlib.contextmanager
def cosmosdb(folder):
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(CosmosEmulator())
        native = CosmosClient(made.endpoint, made.key, enable_endpoint_discovery=False)
        native.create_database("shop").create_container("orders", PartitionKey("/pk"))
        native.__exit__(None, None, None)
        target = made.endpoint.removeprefix("http://").rstrip("/")
        plain = stack.enter_context(Front(target))
        # azure-cosmos does not verify the certificate of `localhost`.
        tls = stack.enter_context(Front(target, folder, "::1"))
        stack.enter_context(mock.patch.dict(os.environ, {"REQUESTS_CA_BUNDLE": str(tls.certificate)}))

        def config(with_tls, host):
            place = f"[::1]:{tls.port}" if with_tls else f"{host}:{plain.port}"
            return ClientConfig("cosmos", {"url": f"cosmos://{place}?tls={str(with_tls).lower()}"})

        @contextlib.contextmanager
        def failing(status):
            made.faults.add(Fail(status), times=None)
            try:
                yield
            finally:
                made.faults.clear()

        refusing = {
            "wrong password or key": lambda: failing(401),
            "no permission": lambda: failing(403),
        }
        yield Place(ResourceAddress("shop", "orders"), config, refusing | networks(plain, tls))


PLACES = {"MongoDB": mongodb, "DynamoDB": dynamodb, "Spanner": spanner, "Cosmos DB": cosmosdb}
AUTHENTICATION, AUTHORIZATION = ErrorCategory.AUTHENTICATION_FAILED, ErrorCategory.AUTHORIZATION_FAILED
CAUSES = {
    "wrong password or key": AUTHENTICATION,
    "no permission": AUTHORIZATION,
    "TLS": AUTHENTICATION,
}


@pytest.fixture(scope="module", params=PLACES)
def place(request, tmp_path_factory):
    with PLACES[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made


def timed(read, category):
    """Return the error that a call raises, and how long the call took."""
    began = time.monotonic()
    with pytest.raises(MulticloudDbError) as caught:
        read()
    assert caught.value.category == category, caught.value
    return caught.value, time.monotonic() - began


def assert_soon(moment, attempt):
    """Assert that each call of an attempt ends in time, and show how long the calls took."""

    def slowest():
        seconds = attempt()
        sys.stdout.write(f"{moment}: {', '.join(f'{each:.2f} s' for each in seconds)}\n")
        return max(seconds)

    assert_prompt(SECONDS, slowest, at_most=OUTAGE_SECONDS)


def request_at(place, page=None):
    start = Now() if page is None else FromContinuationToken(page.continuation_token)
    return ChangeFeedRequest(place.address, start)


def next_page(client, request):
    return next(client.iterate_changes(request, max_outage_seconds=OUTAGE_SECONDS).pages())


def is_read(client, request):
    """Return True if a client can read, False if it tries again and fails."""
    try:
        return client.read_changes(request).events == ()
    except MulticloudDbError:
        return False


@pytest.mark.parametrize("cause", CAUSES)
class TestRefused:
    """The iterator would try again for `OUTAGE_SECONDS` after an error that may pass."""

    def test_at_opening(self, place, cause):
        def attempt():
            with place.client(cause) as client:
                request, options = request_at(place), OperationOptions(5.0)
                _, first = timed(lambda: client.read_changes(request, options), CAUSES[cause])
                _, second = timed(lambda: next_page(client, request), CAUSES[cause])
                return first, second

        with place.refusing[cause]():
            assert_soon("at opening", attempt)

    def test_in_mid_stream(self, place, cause):
        def attempt():
            with place.client(cause) as client:
                # gRPC's channels of one process share a connection, which may still wait after a test before.
                wait_until(lambda: is_read(client, request_at(place)))
                page = client.read_changes(request_at(place))
                page = client.read_changes(request_at(place, page))
                request = request_at(place, page)
                with place.refusing[cause]():
                    seconds = [timed(lambda: next_page(client, request), CAUSES[cause])[1] for _ in range(2)]
                # The same client works again when the cause is gone.
                wait_until(lambda: is_read(client, request))
            return seconds

        assert_soon("in mid-stream", attempt)


class TestUnknownHost:
    def test_at_opening_the_error_names_the_host(self, place):
        def attempt():
            with place.client("unknown host", NO_HOST) as client:
                read = functools.partial(next_page, client, request_at(place))
                error, seconds = timed(read, ErrorCategory.INVALID_REQUEST)
                assert NO_HOST in error.message
                return (seconds,)

        assert_soon("at opening", attempt)

    # gRPC does not use Python's function to look up an address, so a test cannot make it fail.
    @pytest.mark.parametrize("place", [name for name in PLACES if name != "Spanner"], indirect=True)
    def test_in_mid_stream_it_is_tried_again(self, place):
        with place.client("unknown host") as client:
            page = client.read_changes(request_at(place))
            with place.refusing["unknown host"]():
                error, _ = timed(
                    lambda: client.read_changes(request_at(place, page), OperationOptions(2.0)),
                    ErrorCategory.TRANSIENT_FAILURE,
                )
            assert error.retryable
            assert next_page(client, request_at(place, page)).events == ()


@contextlib.contextmanager
def no_permission(folder):
    """Read as another user, because permission bits do not restrict root."""
    user = os.geteuid()
    folder.chmod(0)
    os.seteuid(user or NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)
        folder.chmod(0o777)


@contextlib.contextmanager
def no_folder(folder):
    folder.rename(folder.with_name("elsewhere"))
    try:
        yield
    finally:
        folder.with_name("elsewhere").rename(folder)


class TestTable:
    def test_the_page_has_the_causes_and_services_of_these_tests(self):
        text = (ROOT / "docs/how-to/troubleshooting.md").read_text(encoding="utf-8")
        head, _, *rows = text[text.index("| cause |") :].partition("\n\n")[0].splitlines()
        assert [cell.strip() for cell in head.split("|")[3:-1]] == list(PLACES)
        cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
        categories = CAUSES | {"unknown host": ErrorCategory.INVALID_REQUEST}
        assert {cause: category.strip("`") for cause, category, *_ in cells} == categories
        times = [float(time) for row in cells for time in re.findall(r"[0-9.]+", " ".join(row[2:]))]
        assert max(times) < SECONDS


DISK = {
    no_permission: (AUTHORIZATION, AUTHORIZATION),
    no_folder: (ErrorCategory.INVALID_REQUEST, ErrorCategory.NOT_FOUND),
}


@pytest.mark.parametrize("cause", DISK, ids=["no permission", "no folder"])
class TestEmbedded:
    @pytest.fixture
    def path(self):
        """Return the path of a store. Other users can reach its folder."""
        with tempfile.TemporaryDirectory(prefix="multiclouddb-") as top:
            Path(top).chmod(0o777)
            path = Path(top, "stores", "store.db")
            path.parent.mkdir()
            with EmbeddedStore(path, durable=False) as store:
                store.create_collection("items", partitions=1)
            for each in (path.parent, path):
                each.chmod(0o777)
            yield path

    def test_at_opening(self, path, cause):
        def attempt():
            with cause(path.parent):
                return (timed(lambda: self.read(path), DISK[cause][0])[1],)

        assert_soon("at opening", attempt)

    def test_in_mid_stream(self, path, cause):
        def attempt():
            with connect(f"embedded://{path}") as client:
                page = client.read_changes(ChangeFeedRequest(ITEMS, Now()))
                request = ChangeFeedRequest(ITEMS, FromContinuationToken(page.continuation_token))
                with cause(path.parent):
                    seconds = timed(lambda: next_page(client, request), DISK[cause][1])[1]
                assert is_read(client, request)
                return (seconds,)

        assert_soon("in mid-stream", attempt)

    def read(self, path):
        with connect(f"embedded://{path}") as client:
            next_page(client, ChangeFeedRequest(ITEMS, Now()))
