"""Tests that an answer has a bound: botocore reads whatever a server sends into memory."""

import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from multiclouddb_api import ChangeFeedRequest, MulticloudDbError, Now, ResourceAddress, connect
from multiclouddb_dynamo import client as client_module
from multiclouddb_spi.bounded_pools import AnswerBound


class Endless(BaseHTTPRequestHandler):
    """Answers with a text that never ends; it counts the requests and the bytes."""

    protocol_version = "HTTP/1.1"
    asked = sent = 0

    def do_POST(self):
        type(self).asked += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-amz-json-1.0")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        part = b" " * 100_000
        with suppress(OSError):  # until the client goes away
            while True:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
                type(self).sent += len(part)

    def log_message(self, *_):
        """Suppress log messages."""


@pytest.fixture
def endless(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    Endless.asked = Endless.sent = 0
    with ThreadingHTTPServer(("127.0.0.1", 0), Endless) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield f"dynamo://eu-west-1?endpoint_url=http://127.0.0.1:{made.server_port}"
        made.shutdown()
        thread.join()


def test_an_answer_that_never_ends_is_given_up(endless, monkeypatch):
    bound = AnswerBound(4 << 20, client_module._BOUND.reason)
    monkeypatch.setattr(client_module, "_BOUND", bound)
    with connect(endless) as client, pytest.raises(MulticloudDbError) as refused:
        client.read_changes(ChangeFeedRequest(ResourceAddress(None, "orders"), Now()))
    assert (refused.value.category, refused.value.detail.retryable) == ("PROVIDER_ERROR", False)
    assert "the answer has more than 4 MiB; an answer of DynamoDB has at most" in refused.value.message
    assert (Endless.asked, Endless.sent < 40 << 20) == (1, True)


def test_the_bound_lets_the_largest_answer_pass():
    """16 MB of BatchGetItem, all of it a list of nulls."""
    assert client_module._BOUND.nbytes > 16 * 1024 * 1024 * len('{"NULL":true},')
