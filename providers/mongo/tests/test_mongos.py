"""Tests feeds behind a `mongos`, whose answers may be short or empty although changes exist."""

import contextlib
import random
import socket
import socketserver
import struct
import threading
from collections.abc import Callable
from contextlib import closing
from typing import IO

import bson
import pytest

from multiclouddb_api import (
    ChangeFeedRequest,
    ClientConfig,
    FromContinuationToken,
    Now,
    ResourceAddress,
    connect,
)

from .monitor import keys, read
from .test_heads import World, soon

OWN_SETS = ("brisk",)
OP_MSG = 2013
HEADER = struct.Struct("<iiii")
# The fields of a member's greeting that a `mongos` does not send.
OF_A_MEMBER = ("setName", "setVersion", "hosts", "me", "primary", "secondary", "electionId", "lastWrite")


class Mongos(socketserver.ThreadingTCPServer):
    """Forwards every connection to a member, and changes the answers."""

    daemon_threads = True

    def __init__(self, member: str, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self.member, self.random = member, random.Random(seed)
        self.streams: dict[int, _Stream] = {}
        # In the mode `poll`, every answer follows a request.
        options = "heartbeatFrequencyMS=500&serverMonitoringMode=poll"
        self.uri = f"mongodb://127.0.0.1:{self.server_address[1]}/?{options}"

    def answer(self, asked: bytes, ask: Callable[[bytes], bytes]) -> bytes:
        command = _document(asked)
        stream = self.streams.get(command.get("getMore", 0))
        held = stream and stream.answer(self.random)
        if held:
            return _reply(asked, held)
        answer = ask(asked)
        return _rewritten(answer, self._changed(command, _document(answer)))

    def _changed(self, command: dict, answer: dict) -> dict:
        if "isWritablePrimary" in answer or "ismaster" in answer:
            return {name: value for name, value in answer.items() if name not in OF_A_MEMBER} | {
                "msg": "isdbgrid"
            }
        cursor = answer.get("cursor", {})
        if not cursor.get("id") or "postBatchResumeToken" not in cursor:
            return answer
        stream = self.streams.get(cursor["id"])
        if stream is None:
            stages = command.get("pipeline") or [{}]
            start = stages[0].get("$changeStream", {})
            at = start.get("resumeAfter") or start.get("startAfter")
            if at is None:  # nothing is known yet that could be held back
                at = cursor["postBatchResumeToken"]
                self.streams[cursor["id"]] = _Stream(answer, at)
                return answer
            stream = self.streams[cursor["id"]] = _Stream(answer, at)
        return stream.take(answer, self.random)


class _Connection(socketserver.StreamRequestHandler):
    server: Mongos

    def handle(self) -> None:
        host, _, port = self.server.member.rpartition(":")
        with (
            contextlib.suppress(OSError, EOFError),
            socket.create_connection((host, int(port))) as far,
            far.makefile("rb") as answers,
        ):

            def ask(message: bytes) -> bytes:
                far.sendall(message)
                return _message(answers)

            while True:
                self.wfile.write(self.server.answer(_message(self.rfile), ask))


class _Stream:
    """The changes that are held back of one cursor."""

    def __init__(self, answer: dict, at: dict) -> None:
        self._template, self._at = answer, at
        self._held: list = []
        self._end = at

    def take(self, answer: dict, chance: random.Random) -> dict:
        """Return what is sent of a member's answer."""
        cursor = answer["cursor"]
        name = "firstBatch" if "firstBatch" in cursor else "nextBatch"
        self._template, self._end = answer, cursor["postBatchResumeToken"]
        self._held += cursor[name]
        return self._sent(chance.choice([0, 0, 1, len(self._held)]), name)

    def answer(self, chance: random.Random) -> dict | None:
        """Return an answer from what is held back, or None to ask the member."""
        return self._sent(chance.choice([0, 1, 2, len(self._held)]), "nextBatch") if self._held else None

    def _sent(self, count: int, name: str) -> dict:
        sent, self._held = self._held[:count], self._held[count:]
        if sent:
            self._at = sent[-1]["_id"]
        if not self._held:
            self._at = self._end
        cursor = {key: value for key, value in self._template["cursor"].items() if "Batch" not in key}
        cursor = cursor | {name: sent, "postBatchResumeToken": self._at}
        return self._template | {"cursor": cursor}


def _message(file: IO[bytes]) -> bytes:
    head = file.read(4)
    if len(head) < 4:
        raise EOFError
    return head + file.read(int.from_bytes(head, "little") - 4)


def _start(message: bytes) -> int:
    """Return where the first document of a message begins."""
    match HEADER.unpack_from(message)[3]:
        case 2013:  # OP_MSG
            return HEADER.size + 5
        case 1:  # OP_REPLY
            return HEADER.size + 20
        case _:  # OP_QUERY
            return message.index(b"\0", HEADER.size + 4) + 1 + 8


def _document(message: bytes) -> dict:
    start = _start(message)
    (length,) = struct.unpack_from("<i", message, start)
    return bson.decode(message[start : start + length])


def _rewritten(message: bytes, document: dict) -> bytes:
    start, new = _start(message), bson.encode(document)
    (length,) = struct.unpack_from("<i", message, start)
    rest = message[4:start] + new + message[start + length :]
    return struct.pack("<i", 4 + len(rest)) + rest


def _reply(asked: bytes, document: dict) -> bytes:
    _, number, _, _ = HEADER.unpack_from(asked)
    body = struct.pack("<IB", 0, 0) + bson.encode(document)
    return HEADER.pack(HEADER.size + len(body), 0, number, OP_MSG) + body


ROUNDS = 2


@pytest.fixture(params=range(2))
def mongos(brisk, request):
    with Mongos(brisk.members[0], request.param) as made:
        threading.Thread(target=made.serve_forever, args=(0.05,)).start()
        yield made
        made.shutdown()


@pytest.fixture
def written(brisk, database):
    collection = brisk.client()[database]["c"]
    collection.insert_one({"_id": 0})
    return collection


def some_keys(number):
    return [10 * number + each for each in range(1, 8)]


def test_idle_comes_after_every_acknowledged_write(mongos, written):
    here = ResourceAddress(written.database.name, "c")
    with connect(ClientConfig("mongo", {"url": mongos.uri})) as client:
        token = read(client, here, Now()).continuation_token
        for number in range(ROUNDS):
            written.insert_many([{"_id": key} for key in some_keys(number)])
            request = ChangeFeedRequest(here, FromContinuationToken(token))
            with client.iterate_changes(request, until_idle=True) as changes:
                assert keys(changes) == some_keys(number)
                token = changes.continuation_token


def test_a_call_without_the_time_to_wait_is_not_idle(mongos, written):
    """The caller's short time limit ends the wait for the shards."""
    here = ResourceAddress(written.database.name, "c")
    with connect(ClientConfig("mongo", {"url": mongos.uri})) as client:
        page = read(client, here, Now())
        written.insert_one({"_id": 1})
        while not page.events:
            page = read(client, here, page.continuation_token, timeout=1.0)
            assert page.events or not page.idle


def test_a_bounded_read_contains_every_acknowledged_write(mongos, brisk, written):
    world = World(brisk, written.database.name, uri=mongos.uri)
    with closing(world.provider):
        world.start()
        for number in range(ROUNDS):
            world.write(*some_keys(number))
            target, seen = world.planner.target(world.at, soon()), []
            for step in world.planner.steps(world.at, soon(), target):
                world.at = step.after
                seen += world.read(step.ranges())
            assert seen == some_keys(number)
