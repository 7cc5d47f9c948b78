"""Tests the command line on DynamoDB with real processes that are killed and restarted, and its options."""

import itertools

import pytest

from testing.command_line import Tail, Writer, follow
from testing.command_options import CommandOptions, Shown

from .harness import url_of
from .servers.local import shared
from .test_us8_scripted import Scripted

TABLE = "orders"
NUMBERS = itertools.count()


def put(server, *keys):
    for key in keys:
        server.client().put_item(TableName=TABLE, Item={"pk": {"S": key}, "secret": {"S": "a document"}})


class TestTail:
    @pytest.fixture
    def scripted(self):
        with Scripted() as server:
            server.create_table(TABLE)
            put(server, "before")
            server.script.advance(300)
            yield server

    @pytest.fixture
    def tail(self, scripted, tmp_path):
        return Tail(url_of(scripted), TABLE, "--from", "now", "--checkpoint", tmp_path / "position")

    @pytest.fixture
    def divide(self, scripted):
        """Return a function that closes the first open shard and makes one child or two children."""
        script = scripted.script
        return lambda into: (script.roll_over if into == 1 else script.split)(script.open_shards(TABLE)[0])

    def test_killed_again_and_again_it_misses_nothing(self, scripted, tail, divide):
        """During writes, rollovers and splits, the command is killed at its start or within a page."""
        writer = Writer(lambda key: put(scripted, key), pause=0.01)
        in_one, in_two = (lambda: divide(1)), (lambda: divide(2))
        follow(tail, writer, [(None, 1), (in_one, 40), (in_two, 1), (in_one, 40), (in_two, 7)])
        assert sorted(tail.keys()) == writer.written
        assert len(writer.written) > 80
        assert len(scripted.script.open_shards(TABLE)) == 3

    def test_killed_before_the_first_event_it_misses_nothing(self, scripted, tail, divide):
        """The command is killed several times, over a longer period than the lifetime of an iterator."""
        for children in (None, 1, 2):
            if children:
                divide(children)
            tail.run_until_saved()
        keys = [f"o-{number}" for number in range(10)]
        put(scripted, *keys)
        scripted.script.advance(60 * 20)
        tail.finish()
        assert sorted(tail.keys()) == keys
        assert len(tail.seen) == len(keys)


class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self):
        local = shared()
        name = f"orders-{next(NUMBERS)}"
        local.create_table(name)
        client = local.client()
        return Shown(
            url_of(local), name,
            lambda key: client.put_item(TableName=name, Item={"pk": {"S": key}}),
            lambda key: client.delete_item(TableName=name, Key={"pk": {"S": key}}),
            lambda key: {"pk": key},
            can_start_at=False,
        )  # fmt: skip
