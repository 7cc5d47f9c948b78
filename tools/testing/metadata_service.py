"""A metadata service of a machine, from which boto3 and google-auth get credentials."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

__all__ = ["metadata_service"]

_CREDENTIALS = {
    "Code": "Success",
    "AccessKeyId": "local",
    "SecretAccessKey": "nobody",
    "Token": "t",
    "Expiration": "2999-01-01T00:00:00Z",
}
_GIVEN = {"token": "t", "roles": "reader", "role": json.dumps(_CREDENTIALS)}


@contextmanager
def metadata_service(monkeypatch: Any) -> Iterator[dict[str, int]]:
    """Provide a machine of AWS; the dict has other statuses for "token", "roles" and "role"."""

    class Handler(BaseHTTPRequestHandler):
        statuses: ClassVar[dict[str, int]] = {}

        def answer(self) -> None:
            kind = "token" if self.path.endswith("/token") else "roles" if self.path.endswith("/") else "role"
            needs_token = kind != "token" and self.headers["x-aws-ec2-metadata-token"] is None
            text = _GIVEN[kind].encode()
            self.send_response(401 if needs_token else self.statuses.get(kind, 200))
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PUT = answer  # noqa: N815 - the names that http.server calls

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    monkeypatch.setattr("multiclouddb_spi.machine_role._KEPT_SECONDS", 0.0)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    monkeypatch.setenv("AWS_METADATA_SERVICE_TIMEOUT", "30")  # a slow machine is no outage
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
    try:
        yield Handler.statuses
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
