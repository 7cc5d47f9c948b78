"""Runs a Python process of Spark, which connects to the JVM before it imports anything else.

    python early.py MODULE

The JVM waits for the connection for ten seconds, and no setting changes this time. On a busy machine, some
imports take longer than ten seconds; if they ran first, the query would fail.
"""

import os
import runpy
import socket
import struct
import sys


def connect():
    """Return a file and a socket, like `pyspark.util.local_connect_and_auth`."""
    path = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
    if path:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        return sock.makefile("rwb"), sock
    sock = socket.create_connection(("127.0.0.1", int(os.environ["PYTHON_WORKER_FACTORY_PORT"])))
    file = sock.makefile("rwb")
    secret = os.environ["PYTHON_WORKER_FACTORY_SECRET"].encode()
    file.write(struct.pack("!i", len(secret)) + secret)
    file.flush()
    (length,) = struct.unpack("!i", file.read(4))
    assert file.read(length) == b"ok"
    return file, sock


made = [connect()]
module = sys.argv.pop()
# `python -m` does the same.
sys.path[0] = os.getcwd()

import pyspark.util  # noqa: E402 - it takes long

ordinary = pyspark.util.local_connect_and_auth
pyspark.util.local_connect_and_auth = lambda *where: made.pop() if made else ordinary(*where)
runpy.run_module(module, run_name="__main__", alter_sys=True)
