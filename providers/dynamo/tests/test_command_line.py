"""Tests the command line on DynamoDB with real processes that are killed and restarted."""

import re

import pytest

from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, follow, run, said

from .servers.server import CREDENTIALS
from .test_us8_scripted import Scripted

TABLE = "orders"


def url_of(server):
    return f"dynamo://eu-west-1?endpoint_url={server.endpoint_url}"


def put(server, *keys):
    for key in keys:
        server.client().put_item(TableName=TABLE, Item={"pk": {"S": key}, "secret": {"S": "a document"}})


def divide(server, into):
    """Close the first open shard. A rollover makes one child, and a split makes two children."""
    shard = server.script.open_shards(TABLE)[0]
    (server.script.roll_over if into == 1 else server.script.split)(shard)


@pytest.fixture
def scripted():
    with Scripted() as server:
        server.create_table(TABLE)
        yield server


@pytest.fixture
def tail(scripted, tmp_path):
    put(scripted, "before")
    scripted.script.advance(300)
    return Tail(url_of(scripted), TABLE, "--from", "now", "--checkpoint", tmp_path / "position")


class TestTail:
    def test_killed_again_and_again_it_misses_nothing(self, scripted, tail):
        """During writes, rollovers and splits, the command is killed at its start or within a page."""
        writer = Writer(lambda key: put(scripted, key), pause=0.01)
        in_one, in_two = (lambda: divide(scripted, 1)), (lambda: divide(scripted, 2))
        follow(tail, writer, [(None, 1), (in_one, 40), (in_two, 1), (in_one, 40), (in_two, 7)])
        assert sorted(tail.keys()) == writer.written
        assert len(writer.written) > 80
        assert len(scripted.script.open_shards(TABLE)) == 3

    def test_killed_before_the_first_event_it_misses_nothing(self, scripted, tail):
        """The command is killed several times, over a longer period than the lifetime of an iterator."""
        for children in (None, 1, 2):
            if children:
                divide(scripted, children)
            tail.run_until_saved()
        keys = [f"o-{number}" for number in range(10)]
        put(scripted, *keys)
        scripted.script.advance(60 * 20)
        tail.finish()
        assert sorted(tail.keys()) == keys
        assert len(tail.seen) == len(keys)


def test_partitions_are_the_shards_below_their_parents(scripted):
    divide(scripted, 1)
    divide(scripted, 2)
    first, *lines = said("partitions", url_of(scripted), TABLE).splitlines()
    assert first == "4 partitions: 2 open, 2 closed"
    shapes = [re.fullmatch(r"( *)shardId-[\w-]+  (open|closed)(?:  dynamo:\S+)?", line) for line in lines]
    assert [(len(shape[1]), shape[2]) for shape in shapes] == [
        (0, "closed"), (2, "closed"), (4, "open"), (4, "open"),
    ]  # fmt: skip


def test_a_stream_that_was_switched_off_is_read_to_its_end(scripted, tmp_path):
    """A disabled stream cannot be read from a start; from a checkpoint, it is read to its end."""
    position = tmp_path / "position"
    kept = ("tail", url_of(scripted), TABLE, "--checkpoint", position)
    said(*kept, "--until-idle")
    put(scripted, "o-1")
    scripted.client().update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})
    ran = run("tail", url_of(scripted), TABLE)
    assert_refused(ran, 3, "INVALID_REQUEST", "disabled", hidden=[CREDENTIALS["AWS_SECRET_ACCESS_KEY"]])
    ran = run(*kept)
    assert ran.returncode == 0
    assert ran.stderr.startswith("notice: FeedEnded: ")
    assert 'pk="o-1"' in ran.stdout


def test_an_expired_token_is_told(scripted, tmp_path):
    position = tmp_path / "position"
    for key in ("o-1", "o-2"):
        said("tail", url_of(scripted), TABLE, "--until-idle", "--checkpoint", position)
        put(scripted, key)
    divide(scripted, 1)
    scripted.script.advance(25 * 3600)
    ran = run("token", "check", url_of(scripted), f"@{position}")
    assert ran.returncode == 6
    assert ran.stderr.startswith("error: [CHECKPOINT_EXPIRED] ")
    assert re.search(r"^resumes +no$", ran.stdout, re.MULTILINE)
