"""Tests feeds behind a `mongos`, whose answers may be short or empty although changes exist."""

import contextlib
import random
import socket
import struct
import threading
from contextlib import closing
from typing import Self

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
from .servers.mongod import shared
from .test_heads import World, soon

OP_REPLY, OP_QUERY, OP_MSG = 1, 2004, 2013
HEADER = struct.Struct("<iiii")
# The fields of a member's greeting that a `mongos` does not send.
OF_A_MEMBER = ("setName", "setVersion", "hosts", "me", "primary", "secondary", "electionId", "lastWrite")


class Mongos:
    """Forwards every connection to a member, and changes the answers."""

    def __init__(self, member: str, seed: int) -> None:
        host, _, port = member.rpartition(":")
        self._member = host, int(port)
        self._random = random.Random(seed)
        self._sides: set[socket.socket] = set()
        self._streams: dict[int, _Stream] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.uri = f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/?heartbeatFrequencyMS=500"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for side in list(self._sides):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError), near, socket.create_connection(self._member) as far:
            self._sides |= {near, far}
            while True:
                asked = _message(near)
                command = _document(asked)
                stream = self._streams.get(command.get("getMore", 0))
                held = stream and stream.answer(self._random)
                if held:
                    near.sendall(_reply(asked, held))
                    continue
                far.sendall(asked)
                more = True
                while more:
                    answer = _message(far)
                    more = bool(_flags(answer) & 2)  # the member streams its greetings
                    near.sendall(_rewritten(answer, self._changed(command, _document(answer))))

    def _changed(self, command: dict, answer: dict) -> dict:
        if "isWritablePrimary" in answer or "ismaster" in answer:
            return {name: value for name, value in answer.items() if name not in OF_A_MEMBER} | {
                "msg": "isdbgrid"
            }
        cursor = answer.get("cursor", {})
        if not cursor.get("id") or "postBatchResumeToken" not in cursor:
            return answer
        stream = self._streams.get(cursor["id"])
        if stream is None:
            stages = command.get("pipeline") or [{}]
            start = stages[0].get("$changeStream", {})
            at = start.get("resumeAfter") or start.get("startAfter")
            if at is None:  # nothing is known yet that could be held back
                at = cursor["postBatchResumeToken"]
                self._streams[cursor["id"]] = _Stream(answer, at)
                return answer
            stream = self._streams[cursor["id"]] = _Stream(answer, at)
        return stream.take(answer, self._random)


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


def _message(side: socket.socket) -> bytes:
    head = _exactly(side, 4)
    (length,) = struct.unpack("<i", head)
    return head + _exactly(side, length - 4)


def _exactly(side: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        more = side.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return found


def _flags(message: bytes) -> int:
    return struct.unpack_from("<I", message, HEADER.size)[0] if _kind(message) == OP_MSG else 0


def _kind(message: bytes) -> int:
    return HEADER.unpack_from(message)[3]


def _start(message: bytes) -> int:
    """Return where the first document of a message begins."""
    match _kind(message):
        case _ if _kind(message) == OP_MSG:
            return HEADER.size + 5
        case 1:
            return HEADER.size + 20
        case _:
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


@pytest.fixture(scope="module")
def brisk():
    """Provide a member that writes an empty operation every second, as the shards of a cluster do."""
    return shared("brisk", 1, parameters={"periodicNoopIntervalSecs": 1})


@pytest.fixture(params=range(2))
def mongos(brisk, request):
    with Mongos(brisk.members[0], request.param) as made:
        yield made


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
