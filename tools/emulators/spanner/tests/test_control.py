"""Tests the control API over gRPC."""

import json
from datetime import datetime

import grpc
import pytest

from multiclouddb_spanner_emulator import ScriptedSpanner, Write

from .native import Native
from .test_server import STREAM, TABLE


@pytest.fixture
def server():
    with ScriptedSpanner() as made:
        yield made


@pytest.fixture
def control(server):
    with grpc.insecure_channel(server.host) as channel:
        call = channel.unary_unary("/multiclouddb.emulator.Spanner/Control")
        yield lambda **asked: json.loads(call(json.dumps(asked).encode(), timeout=10))["result"]


@pytest.fixture
def database(server, control):
    control(command="initial_partitions", count=1)
    return Native(server.host, TABLE, STREAM).database.name


def test_partitions_split_and_merge(control, database):
    there = {"database": database, "stream": "s"}
    (parent,) = control(command="open_partitions", **there)
    first, second = control(command="split", token=parent)
    assert control(command="open_partitions", **there) == [first, second]
    child = control(command="merge", first=first, second=second)
    assert control(command="open_partitions", **there) == [child]


def test_time_passes(control):
    before = datetime.fromisoformat(control(command="now"))
    control(command="advance", seconds=3600)
    assert (datetime.fromisoformat(control(command="now")) - before).total_seconds() >= 3600


def test_a_row_expires_and_a_record_is_damaged(server, control, database):
    server.commit(database, Write("insert", "t", ("id",), [["a"]]))
    control(command="expire_row", database=database, table="t", key=["a"])
    control(command="poison", database=database, stream="s", table="t", key=["a"])
    (partition,) = server.partitions(database, "s")
    assert partition.records == 3
    assert control(command="open_streams") == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"command": "explode"}, "there is no command 'explode'"),
        ({"command": "advance"}, "seconds"),
        ({"command": "advance", "seconds": -1}, "control: "),
        ({"command": "split", "token": "none"}, "no change stream has all of these partitions"),
        ({}, "command"),
    ],
)
def test_what_is_wrong_is_named(control, asked, said):
    with pytest.raises(grpc.RpcError) as caught:
        control(**asked)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert said in caught.value.details()
