"""Runs a server that is not part of a replica set, and therefore has no change streams."""

import contextlib
import socket
import subprocess
import time

from pymongo import MongoClient
from pymongo.errors import ConnectionFailure

from .servers.fetch import fetch
from .servers.mongod import START_SECONDS, Group


@contextlib.contextmanager
def standalone(folder):
    """Start a server with its data in an empty folder, and return the server's connection string."""
    with socket.socket() as port:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))  # the port stays bound, because mongod can bind it too
        host = f"127.0.0.1:{port.getsockname()[1]}"
        (folder / "data").mkdir()
        command = [str(fetch()), "--dbpath", str(folder / "data"), "--port", host.rpartition(":")[2]]
        command += ["--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"]
        log = folder / "log"
        with (
            contextlib.closing(Group(folder / "data")) as group,
            log.open("wb") as out,
            subprocess.Popen(command, stdout=out, stderr=out, process_group=group.id) as process,
        ):
            try:
                _wait(host, process, log)
                yield f"mongodb://{host}/"
            finally:
                process.kill()


def _wait(host, process, log):
    until = time.monotonic() + START_SECONDS
    with MongoClient(host, serverSelectionTimeoutMS=200) as client:
        while True:
            try:
                client.admin.command("ping")
                return
            except ConnectionFailure:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(log.read_text(errors="replace")[-2000:]) from None
