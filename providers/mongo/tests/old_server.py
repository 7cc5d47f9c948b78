"""Simulates a server that is too old for PyMongo.

The simulated server reports its version in its greeting and sends nothing else.
"""

import contextlib
import socketserver
import struct
import threading

import bson

OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
HEADER = struct.Struct("<iiii")


class _Handler(socketserver.StreamRequestHandler):
    def handle(self):
        with contextlib.suppress(OSError):
            while header := self.rfile.read(HEADER.size):
                length, request, _, code = HEADER.unpack(header)
                self.rfile.read(length - HEADER.size)
                answer = bson.encode(self.server.hello)
                # The first greeting of a connection has the old form; later greetings may have the new form.
                old = code == OP_QUERY
                body = struct.pack("<iqii", 8, 0, 0, 1) + answer if old else struct.pack("<ib", 0, 0) + answer
                self.server.greeted += 1
                kind = OP_REPLY if old else OP_MSG
                self.wfile.write(HEADER.pack(HEADER.size + len(body), 0, request, kind) + body)


class OldServer(socketserver.ThreadingTCPServer):
    """The only node of a replica set, with the given wire version. MongoDB 4.2 has wire version 8."""

    daemon_threads = True

    def __init__(self, wire_version):
        super().__init__(("127.0.0.1", 0), _Handler)
        host = f"127.0.0.1:{self.server_address[1]}"
        self.greeted = 0
        self.hello = {
            "ok": 1.0,
            "ismaster": True,
            "secondary": False,
            "setName": "rs",
            "setVersion": 1,
            "hosts": [host],
            "me": host,
            "primary": host,
            "minWireVersion": 0,
            "maxWireVersion": wire_version,
            "maxBsonObjectSize": 16 << 20,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
        }
        self.uri = f"mongodb://{host}/?replicaSet=rs&heartbeatFrequencyMS=500&serverMonitoringMode=poll"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self._thread.join()
        self.server_close()
