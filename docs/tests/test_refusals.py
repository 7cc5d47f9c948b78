"""Tests how soon each provider reports that the service refuses, or that its host is unknown.

The table in docs/reference/errors.md contains the same causes, providers and categories.
"""

import contextlib
import socket
import sys
import time
from unittest import mock

import attrs
import pytest

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

from .front import Front
from .page import servers

# The limit that the page promises. The iterator would try again for much longer.
SECONDS = 2.0
OUTAGE_SECONDS = 20.0
NO_HOST = "no-such-host.invalid"


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
        return connect(self.config(cause == "TLS", host))


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


PLACES = {"MongoDB": mongodb}
A, Z = ErrorCategory.AUTHENTICATION_FAILED, ErrorCategory.AUTHORIZATION_FAILED
CAUSES = {"wrong password or key": (A, A), "no permission": (Z, Z), "TLS": (A, A)}
CAUSES["unknown host"] = (ErrorCategory.INVALID_REQUEST, ErrorCategory.TRANSIENT_FAILURE)
FINAL = [cause for cause in CAUSES if cause != "unknown host"]


@pytest.fixture(scope="module", params=PLACES)
def place(request, tmp_path_factory):
    with PLACES[request.param](tmp_path_factory.mktemp(request.param)) as made:
        yield made


def timed(read, category, moment):
    began = time.monotonic()
    with pytest.raises(MulticloudDbError) as caught:
        read()
    seconds = time.monotonic() - began
    sys.stdout.write(f"{moment}: {caught.value.category} after {seconds:.2f} s\n")
    assert caught.value.category == category, caught.value
    assert seconds < SECONDS
    return caught.value


def request_at(place, page=None):
    start = Now() if page is None else FromContinuationToken(page.continuation_token)
    return ChangeFeedRequest(place.address, start)


def next_page(client, request):
    return next(client.iterate_changes(request, max_outage_seconds=OUTAGE_SECONDS).pages())


@pytest.mark.parametrize("cause", FINAL)
class TestRefused:
    @pytest.mark.parametrize("timeout", [5.0, 30.0])
    def test_at_opening(self, place, cause, timeout):
        with place.refusing[cause](), place.client(cause) as client:
            options = OperationOptions(timeout)
            timed(lambda: client.read_changes(request_at(place), options), CAUSES[cause][0], "at opening")
            timed(lambda: next_page(client, request_at(place)), CAUSES[cause][0], "again")

    def test_in_mid_stream(self, place, cause):
        with place.client(cause) as client:
            page = client.read_changes(request_at(place))
            page = client.read_changes(request_at(place, page))
            with place.refusing[cause]():
                for moment in ("in mid-stream", "again"):
                    timed(
                        lambda: next_page(client, request_at(place, page)),
                        CAUSES[cause][1],
                        moment,
                    )
            # The same client works again as soon as the cause is gone.
            assert client.read_changes(request_at(place, page)).events == ()


class TestUnknownHost:
    def test_at_opening_the_error_names_the_host(self, place):
        with place.client("unknown host", NO_HOST) as client:
            error = timed(
                lambda: next_page(client, request_at(place)),
                ErrorCategory.INVALID_REQUEST,
                "at opening",
            )
            assert NO_HOST in error.message

    def test_in_mid_stream_it_is_tried_again(self, place):
        with place.client("unknown host") as client:
            page = client.read_changes(request_at(place))
            with place.refusing["unknown host"](), pytest.raises(MulticloudDbError) as caught:
                client.read_changes(request_at(place, page), OperationOptions(2.0))
            assert caught.value.category == ErrorCategory.TRANSIENT_FAILURE
            assert caught.value.retryable
            assert next_page(client, request_at(place, page)).events == ()
