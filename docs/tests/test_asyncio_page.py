"""Serves changes with the program of the page, to several browsers, and stops it."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing

from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore

from .page import ROOT

LISTENERS = 5


def free_port():
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        return server.getsockname()[1]


def answers(port):
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_the_server_of_the_page_sends_changes_and_stops(tmp_path):
    page = (ROOT / "docs/how-to/asyncio.md").read_text(encoding="utf-8")
    program = re.search(r'```python title="serve.py"\n(.*?)^```', page, re.DOTALL | re.MULTILINE)[1]
    (command,) = re.findall(r"uvicorn (serve:app .*)", page)
    (tmp_path / "serve.py").write_text(program, encoding="utf-8")
    store = EmbeddedStore(tmp_path / "orders.db", durable=False)
    store.create_collection("orders")
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", *command.split(), "--port", str(port)],
        cwd=tmp_path, env={**os.environ, "ORDERS_URL": f"embedded://{store.path}"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    browsers = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(LISTENERS)]
    try:
        wait_until(lambda: answers(port), 60)
        for browser in browsers:
            browser.request("GET", "/changes")
        responses = [browser.getresponse() for browser in browsers]
        store.put("orders", "o-1", {"status": "new"})
        for response in responses:
            assert response.readline().startswith(b"id: ")
            assert b'"status": "new"' in response.readline()
        server.send_signal(signal.SIGTERM)
        said, _ = server.communicate(timeout=60)
        assert "Application shutdown complete" in said
    finally:
        for browser in browsers:
            browser.close()
        server.kill()
        server.wait()
        store.close()
