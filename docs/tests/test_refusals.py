"""Tests how soon each provider reports that the service refuses, or that its host is unknown.

The table in docs/jobs/three-am.md contains the same causes, providers and categories.
"""

import contextlib
import functools
import os
import socket
import tempfile
import time
from pathlib import Path
from unittest import mock

import attrs
import grpc
import pytest
from azure.cosmos import CosmosClient, PartitionKey
from google.cloud.spanner import Client
from google.oauth2.credentials import Credentials

import multiclouddb_api as api
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
ITEMS = api.ResourceAddress("main", "items")


@attrs.frozen
class Place:
    """A service, with a collection that can be read.

    Attributes:
        address: The collection.
        config: Makes the configuration of a client, given whether it connects with TLS and the host's name.
        refusing: Maps each cause to a context in which the service refuses new requests for this reason.
    """

    address: api.ResourceAddress
    config: object
    refusing: dict

    def client(self, cause, host="localhost"):
        made, native = self.config(cause == "TLS", host), None
        if isinstance(made, tuple):
            made, native = made
        return api.connect(made, native_client=native)


@contextlib.contextmanager
def until_the_end(begin, end):
    begin()
    try:
        yield
    finally:
        end()


def place_of(address, config, plain, tls, wrong_key, no_permission):
    """Make a place behind two fronts, one of them with TLS."""
    known = socket.getaddrinfo

    def unknown(host, *args, **rest):
        if host == "localhost":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *args, **rest)

    @contextlib.contextmanager
    def wrong_certificate():
        with tls.wrong_certificate():
            tls.cut()
            yield

    @contextlib.contextmanager
    def nameless():
        with mock.patch.object(socket, "getaddrinfo", unknown):
            plain.cut()
            yield

    causes = {"wrong password or key": wrong_key, "no permission": no_permission}
    return Place(address, config, {**causes, "TLS": wrong_certificate, "unknown host": nameless})


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
            return api.ClientConfig("mongo", {"url": url})

        def change(command, back, **changed):
            def begin():
                shop.command(command, "reader", **changed)
                plain.cut()

            restored = {"pwd": "right"} if command == back else changed
            return until_the_end(begin, lambda: shop.command(back, "reader", **restored))

        yield place_of(
            api.ResourceAddress("shop", "orders"), config, plain, tls,
            lambda: change("updateUser", "updateUser", pwd="other"),
            lambda: change("revokeRolesFromUser", "grantRolesToUser", roles=["read"]),
        )  # fmt: skip


def fronts(stack, folder, target):
    """Return a front without TLS and one with TLS for a service."""
    return stack.enter_context(Front(target)), stack.enter_context(Front(target, folder))


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
            return api.ClientConfig(
                "dynamo",
                {"region": "eu-west-1", "endpoint_url": f"{scheme}://{host}:{port}", "allow_plaintext": True},
            )

        def failing(code):
            troubles = script.troubles
            return until_the_end(lambda: troubles.fail(None, code, times=None), troubles.end)

        yield place_of(
            api.ResourceAddress(collection="orders"), config, plain, tls,
            lambda: failing("UnrecognizedClientException"), lambda: failing("AccessDeniedException"),
        )  # fmt: skip


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
        # gRPC reads the variable for this only once, perhaps for a test before.
        trusted = grpc.ssl_channel_credentials(tls.certificate.read_bytes())
        made_with = functools.partial(grpc.composite_channel_credentials, trusted)
        stack.enter_context(mock.patch.object(grpc, "compute_engine_channel_credentials", made_with))

        def config(with_tls, host):
            names = {"project": "shop", "instance": "main"}
            if not with_tls:
                there = {"emulator_host": f"{host}:{plain.port}", "allow_plaintext": True}
                return api.ClientConfig("spanner", names | there)
            # With the credentials of an emulator, the client would not use TLS.
            settings = {"credentials": Credentials("token"), "disable_builtin_metrics": True}
            native = Client("shop", client_options={"api_endpoint": f"127.0.0.1:{tls.port}"}, **settings)
            return api.ClientConfig("spanner", names), native

        def failing(status):
            troubles = made.troubles
            return until_the_end(lambda: troubles.fail(None, status, times=None), troubles.end)

        yield place_of(
            api.ResourceAddress("shop", "orders"), config, plain, tls,
            lambda: failing("UNAUTHENTICATED"), lambda: failing("PERMISSION_DENIED"),
        )  # fmt: skip


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
            return api.ClientConfig(
                "cosmos", {"url": f"cosmos://{place}?tls={str(with_tls).lower()}&allow_plaintext=true"}
            )

        def failing(status):
            return until_the_end(lambda: made.faults.add(Fail(status), times=None), made.faults.clear)

        yield place_of(
            api.ResourceAddress("shop", "orders"),
            config,
            plain,
            tls,
            lambda: failing(401),
            lambda: failing(403),
        )


PLACES = {"MongoDB": mongodb, "DynamoDB": dynamodb, "Spanner": spanner, "Cosmos DB": cosmosdb}
AUTHENTICATION, AUTHORIZATION = (
    api.ErrorCategory.AUTHENTICATION_FAILED,
    api.ErrorCategory.AUTHORIZATION_FAILED,
)
CAUSES = {"wrong password or key": AUTHENTICATION, "no permission": AUTHORIZATION, "TLS": AUTHENTICATION}


@pytest.fixture(scope="module", params=PLACES)
def place(request, tmp_path_factory):
    with PLACES[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made


def timed(read, category):
    """Return the error that a call raises, and how long the call took."""
    began = time.monotonic()
    with pytest.raises(api.MulticloudDbError) as caught:
        read()
    assert caught.value.category == category, caught.value
    return caught.value, time.monotonic() - began


def assert_soon(attempt):
    """Assert that each call of an attempt ends in time."""
    assert_prompt(SECONDS, lambda: max(attempt()), at_most=OUTAGE_SECONDS)


def request_at(place, page=None):
    start = api.Now() if page is None else api.FromContinuationToken(page.continuation_token)
    return api.ChangeFeedRequest(place.address, start)


def next_page(client, request):
    return next(client.iterate_changes(request, max_outage_seconds=OUTAGE_SECONDS).pages())


def is_read(client, request):
    """Return True if a client can read, False if it tries again and fails."""
    try:
        return client.read_changes(request).events == ()
    except api.MulticloudDbError:
        return False


@pytest.mark.parametrize("cause", CAUSES)
def test_a_refusal_is_reported_at_opening_and_in_mid_stream(place, cause):
    """The iterator would try again for `OUTAGE_SECONDS` after an error that may pass."""
    request, category = request_at(place), CAUSES[cause]

    def at_opening():
        with place.client(cause) as client:
            first = timed(lambda: client.read_changes(request, api.OperationOptions(5.0)), category)[1]
            return first, timed(lambda: next_page(client, request), category)[1]

    def in_mid_stream():
        with place.client(cause) as client:
            page = client.read_changes(request)
            page = client.read_changes(request_at(place, page))
            later = request_at(place, page)
            with place.refusing[cause]():
                seconds = [timed(lambda: next_page(client, later), category)[1] for _ in range(2)]
            # The same client works again when the cause is gone.
            wait_until(lambda: is_read(client, later))
        return seconds

    with place.refusing[cause]():
        assert_soon(at_opening)
    assert_soon(in_mid_stream)


class TestUnknownHost:
    def test_at_opening_the_error_names_the_host(self, place):
        def attempt():
            with place.client("unknown host", NO_HOST) as client:
                read = functools.partial(next_page, client, request_at(place))
                error, seconds = timed(read, api.ErrorCategory.INVALID_REQUEST)
                assert NO_HOST in error.message
                return (seconds,)

        assert_soon(attempt)

    # gRPC does not use Python's function to look up an address, so a test cannot make it fail.
    @pytest.mark.parametrize("place", [name for name in PLACES if name != "Spanner"], indirect=True)
    def test_in_mid_stream_it_is_tried_again(self, place):
        with place.client("unknown host") as client:
            page = client.read_changes(request_at(place))
            with place.refusing["unknown host"]():
                error, _ = timed(
                    lambda: client.read_changes(request_at(place, page), api.OperationOptions(2.0)),
                    api.ErrorCategory.TRANSIENT_FAILURE,
                )
            assert error.retryable
            assert next_page(client, request_at(place, page)).events == ()


def no_permission(folder):
    """Read as another user, because permission bits do not restrict root."""
    user = os.geteuid()

    def begin():
        folder.chmod(0)
        os.seteuid(user or NOBODY)

    def end():
        os.seteuid(user)
        folder.chmod(0o777)

    return until_the_end(begin, end)


def no_folder(folder):
    elsewhere = folder.with_name("elsewhere")
    return until_the_end(lambda: folder.rename(elsewhere), lambda: elsewhere.rename(folder))


def test_the_page_has_the_causes_and_services_of_these_tests():
    text = (ROOT / "docs/jobs/three-am.md").read_text(encoding="utf-8")
    services = " and ".join(", ".join(PLACES).rsplit(", ", 1))
    assert f"{services} report a refusal within two seconds" in text
    _, _, *rows = text[text.index("| cause |") :].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]
    categories = CAUSES | {"unknown host": api.ErrorCategory.INVALID_REQUEST}
    assert {cause: category.strip("`") for cause, category in cells} == categories
    assert SECONDS == 2


DISK = {
    no_permission: (AUTHORIZATION, AUTHORIZATION),
    no_folder: (api.ErrorCategory.INVALID_REQUEST, api.ErrorCategory.NOT_FOUND),
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

    def test_at_opening_and_in_mid_stream(self, path, cause):
        def attempt():
            with cause(path.parent):
                _, first = timed(lambda: self.read(path), DISK[cause][0])
            with api.connect(f"embedded://{path}") as client:
                page = client.read_changes(api.ChangeFeedRequest(ITEMS, api.Now()))
                request = api.ChangeFeedRequest(ITEMS, api.FromContinuationToken(page.continuation_token))
                with cause(path.parent):
                    _, second = timed(lambda: next_page(client, request), DISK[cause][1])
                assert is_read(client, request)
            return first, second

        assert_soon(attempt)

    def read(self, path):
        with api.connect(f"embedded://{path}") as client:
            next_page(client, api.ChangeFeedRequest(ITEMS, api.Now()))
