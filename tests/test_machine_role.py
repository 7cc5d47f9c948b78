"""Tests whether a machine's metadata service that fails is told from a machine that has none."""

import socket
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from multiclouddb_spi import machine_role
from multiclouddb_spi.machine_role import MachineRole, aws_fails, google_fails


@contextmanager
def answering(status, flavor=None):
    class Handler(BaseHTTPRequestHandler):
        def answer(self):
            self.send_response(status)
            self.send_header("content-length", "0")
            if flavor is not None:
                self.send_header("Metadata-Flavor", flavor)
            self.end_headers()

        do_GET = do_PUT = answer  # noqa: N815 - the names that http.server calls

        def log_message(self, *_):
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(params=[aws_fails, google_fails])
def fails(request, monkeypatch):
    """Return a function that asks the machine whose metadata service is at a port."""
    for name in ("AWS_EC2_METADATA_DISABLED", "NO_GCE_CHECK"):
        monkeypatch.delenv(name, raising=False)

    def ask(port):
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}/")
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{port}")
        return request.param()

    return ask


@pytest.mark.parametrize(("status", "expected"), [(500, True), (503, True), (429, True), (404, False)])
def test_a_status_says_whether_it_fails(fails, status, expected):
    with answering(status) as port:
        assert fails(port) is expected


def test_one_that_is_slow_fails(fails, monkeypatch):
    monkeypatch.setattr(machine_role, "_ANSWER_SECONDS", 0.1)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # it takes connections, and says nothing
        assert fails(silent.getsockname()[1])


def test_nobody_fails_where_nobody_answers(fails):
    assert not fails(1)


def test_a_machine_of_google_that_is_well_again_has_failed(monkeypatch):
    for flavor, expected in (("Google", True), (None, False)):
        with answering(200, flavor) as port:
            monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{port}")
            assert google_fails() is expected


@pytest.mark.parametrize(
    ("name", "asked"), [("AWS_EC2_METADATA_DISABLED", aws_fails), ("NO_GCE_CHECK", google_fails)]
)
def test_who_does_not_use_it_is_not_asked(monkeypatch, name, asked):
    with answering(500) as port:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{port}/")
        monkeypatch.setenv("GCE_METADATA_IP", f"127.0.0.1:{port}")
        monkeypatch.setenv(name, "true")
        assert not asked()


def test_an_answer_is_kept_for_a_moment():
    calls = []
    role = MachineRole(lambda: calls.append(0) is None)
    assert role.is_down()
    assert role.is_down()
    assert len(calls) == 1
