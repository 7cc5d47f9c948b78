"""Tests the transport of the library's client, whose reads take fewer steps and give the same result."""

import gzip
import sys
import threading
import tracemalloc
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType

import pytest
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import HttpRequest
from azure.cosmos.exceptions import CosmosHttpResponseError

from multiclouddb_api import (
    ChangeFeedRequest,
    FromContinuationToken,
    MulticloudDbError,
    Now,
    ResourceAddress,
    connect,
)
from multiclouddb_cosmos import transport
from multiclouddb_cosmos.errors import classify
from multiclouddb_cosmos.transport import Adapter, Headers, Transport
from multiclouddb_spi import ProviderFault

from .world import DATABASE, NAME, soon

TEXT = b'{"Documents": ["' + b"x" * 100_000 + b'"]}'


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append({"path": self.path, **self.headers})
        body = gzip.compress(TEXT) if "zipped" in self.path else TEXT
        self.send_response(302 if "moved" in self.path else 200)
        self.send_header("Set-Cookie", "a=b")
        if "zipped" in self.path:
            self.send_header("Content-Encoding", "gzip")
        if "chunked" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for at in range(0, len(body), 30_000):
                part = body[at : at + 30_000]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: 1000 if "short" in self.path else None])
        self.close_connection = "short" in self.path

    def log_message(self, *_):
        """Suppress log messages."""


@pytest.fixture
def server():
    """Provide the address of a server, and the headers of the requests that it gets."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.asked = []
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}", made.asked
        made.shutdown()
        thread.join()


class Bomb(BaseHTTPRequestHandler):
    """Answers with 400 MB, which take 400 kB on the wire unless the path says that nothing is compressed."""

    protocol_version = "HTTP/1.1"
    PACKED = gzip.compress(b" " * 40_000_000)
    asked = 0

    def do_POST(self):
        self.do_GET()

    def do_GET(self):
        type(self).asked += 1
        self.send_response(200)
        if "plain" not in self.path:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Type", "application/json")
        if "chunked" in self.path:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(400_000_000 if "plain" in self.path else len(self.PACKED)))
        self.end_headers()
        with suppress(OSError):  # the client goes away
            if "plain" in self.path:
                for _ in range(400):
                    self.wfile.write(b" " * 1_000_000)
            elif "chunked" in self.path:
                self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(self.PACKED), self.PACKED))
            else:
                self.wfile.write(self.PACKED)

    def log_message(self, *_):
        """Suppress log messages."""


@pytest.fixture
def bomb():
    with ThreadingHTTPServer(("127.0.0.1", 0), Bomb) as made:
        Bomb.asked = 0
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made.server_port
        made.shutdown()
        thread.join()


@contextmanager
def memory_of_at_most(megabytes):
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < megabytes << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("way", ["dbs/a/colls/b/docs", "", "chunked", "plain"])
def test_an_answer_is_bounded_while_it_is_decompressed(bomb, way, method):
    with memory_of_at_most(100), Transport(2) as transport:
        request = HttpRequest(method, f"http://127.0.0.1:{bomb}/{way}", headers={"accept": "*/*"})
        with pytest.raises(ProviderFault, match="the answer has more than 32 MiB") as refused:
            transport.send(request).body()
    assert refused.value.fault.category == "PROVIDER_ERROR"


def test_an_answer_that_is_too_large_is_not_asked_for_again(bomb, monkeypatch):
    monkeypatch.setenv("AZURE_COSMOS_KEY", "YWJj")
    request = ChangeFeedRequest(ResourceAddress("d", "c"), Now())
    url = f"cosmos://127.0.0.1:{bomb}?tls=false"
    with memory_of_at_most(120), pytest.raises(MulticloudDbError) as refused, connect(url) as client:
        client.read_changes(request)
    assert (refused.value.category, refused.value.detail.retryable) == ("PROVIDER_ERROR", False)
    assert "check the address of the service and the proxy" in refused.value.message
    assert Bomb.asked == 1


def read(url, **more):
    with Transport(2) as transport:
        return transport.send(HttpRequest("GET", url, headers={"accept": "application/json"}), **more)


@pytest.mark.parametrize("way", ["plain", "zipped", "chunked", "zipped-chunked"])
def test_a_page_is_read_whole(server, way):
    answer = read(f"{server[0]}/dbs/a/colls/b c/{way}")
    assert answer.status_code == 200
    assert answer.body() == TEXT
    assert answer.headers["SET-cookie"] == "a=b"


def test_the_request_is_the_one_that_requests_would_send(server):
    url, asked = server
    read(f"{url}/dbs/é/colls/b c?x=1")
    read(f"{url}/dbs/é/colls/b c?x=1", stream=True)
    hidden = ("user-agent", "authorization")
    ours, theirs = (
        {name.lower(): value for name, value in each.items() if name.lower() not in hidden} for each in asked
    )
    assert ours == theirs


def test_a_page_that_ends_early_is_an_error(server):
    with pytest.raises(AzureError):
        read(f"{server[0]}/short")


def test_a_redirect_is_an_error(server):
    """Cosmos DB never sends redirects, but a proxy between the client and the service can send them."""
    with pytest.raises(CosmosHttpResponseError) as caught:
        read(f"{server[0]}/dbs/moved")
    assert classify(caught.value).message.startswith("Cosmos DB answered 302")


def test_a_client_can_be_closed_while_azure_cosmos_starts_a_thread(world, monkeypatch):
    """`threading.enumerate` also has the threads that are just being started, which cannot be joined yet."""
    client = world.client()
    client.read_changes(ChangeFeedRequest(ResourceAddress(DATABASE, NAME), Now()))
    starting = threading.Thread(name=transport._THREAD)
    threads = threading.enumerate
    with monkeypatch.context() as patch:
        patch.setattr(threading, "enumerate", lambda: [starting, *threads()])
        client.close()


@pytest.mark.parametrize("own", [True, False])
def test_the_clock_of_a_proxy_is_not_that_of_the_service(world, monkeypatch, own):
    _, feed = world.feed()
    build = Adapter.build_response

    def busy(self, request, response):
        answer = build(self, request, response)
        if "/docs/" in request.url:
            answer.status_code = 503
            answer.headers = Headers({"Date": "Fri, 01 Jan 2100 00:00:00 GMT"})
            if own:
                answer.headers["x-ms-activity-id"] = "1"
        return answer

    monkeypatch.setattr(Adapter, "build_response", busy)
    with pytest.raises(CosmosHttpResponseError):
        feed.start(Now(), None, soon())
    assert (feed.clock(soon()).year == 2100) == own


def test_an_answer_without_a_length_counts_its_bytes(world, monkeypatch):
    """The limit in bytes also applies if a proxy divides answers into chunks."""
    build = Adapter.build_response

    def without_length(self, req, resp):
        answer = build(self, req, resp)
        answer.headers.pop("Content-Length", None)
        return answer

    monkeypatch.setattr(Adapter, "build_response", without_length)
    _, feed = world.feed()
    seeds = feed.start(Now(), None, soon())
    world.put(*(f"c-{number}" for number in range(20)), text="x" * 10_000)
    sizes = [
        feed.open(seed.partition_id, seed.cursor).fetch(100, 1 << 20, 0.0, soon()).nbytes for seed in seeds
    ]
    assert sum(sizes) >= 200_000


@pytest.mark.parametrize(
    ("readers", "left", "wanted"),
    [
        (1, 30, [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]),
        (64, 30, [0.64, 0.64, 0.64, 0.8, 1.0, 1.0]),
        (300, 30, [3.0] * 6),
        (300, 4, [1.0] * 6),  # otherwise no call could ask all ranges, and no page would be idle
    ],
)
def test_all_idle_ranges_together_are_asked_a_hundred_times_a_second(world, readers, left, wanted):
    _, feed = world.feed()
    seed, *_ = feed.start(Now(), None, soon())
    made = [feed.open(seed.partition_id, seed.cursor) for _ in range(readers)]
    batches = [made[0].fetch(10, 1 << 20, 0.0, soon(left)) for _ in wanted]
    assert all(batch.caught_up and not len(batch) for batch in batches)
    assert [batch.poll_after for batch in batches] == pytest.approx(wanted, abs=0.02)


class Searches:
    """Notes which modules are searched for."""

    def __init__(self):
        self.names = []

    def find_spec(self, name, path=None, target=None):
        self.names.append(name)


def test_reading_searches_for_no_module(world, monkeypatch):
    # A thread that imports holds the lock of the module, and a child forked meanwhile waits for it for ever.
    for name in ("opentelemetry", "opencensus"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    address, searches = ResourceAddress(DATABASE, NAME), Searches()
    with connect(world.config()) as client:
        begun = FromContinuationToken(
            client.read_changes(ChangeFeedRequest(address, Now())).continuation_token
        )
        world.put("a", "b")
        client.read_changes(ChangeFeedRequest(address, begun))
        monkeypatch.setattr(sys, "meta_path", [searches, *sys.meta_path])
        page = client.read_changes(ChangeFeedRequest(address, begun))
    assert len(page.events) == 2
    assert searches.names == []
