"""Tests the command line on MongoDB with real processes that are killed and restarted."""

import re

import pytest

from testing.command_line import Tail, Writer, follow, run, said
from testing.command_options import CommandOptions, Shown


@pytest.fixture
def orders(one, database):
    return one.client()[database].create_collection("orders")


@pytest.fixture
def where(one, orders):
    return one.uri(), f"{orders.database.name}/orders"


class TestTail:
    def test_killed_again_and_again_it_misses_nothing(self, one, orders, where, tmp_path):
        """During writes, the command is killed seven times: at its start, in a page, and after failures."""
        orders.insert_one({"_id": "before"})
        tail = Tail(*where, "--checkpoint", tmp_path / "position")
        writer = Writer(lambda key: orders.insert_one({"_id": key, "secret": "a document"}), pause=0.003)

        def forget_cursors():
            one.client().admin.command({"killAllSessions": []})

        def step_down():
            one.stand(one.step_down())
            one.wait_primary()

        follow(
            tail, writer,
            [(None, 1), (None, 100), (forget_cursors, 40), (None, 7), (step_down, 40), (None, 1)],
        )  # fmt: skip
        assert tail.keys() == writer.written
        assert len(writer.written) > 180

    def test_of_a_collection_that_is_dropped_says_so_and_ends(self, orders, where, tmp_path):
        kept = ("--checkpoint", tmp_path / "position")
        said("tail", *where, *kept, "--until-idle")
        orders.insert_one({"_id": "o-1"})
        orders.drop()
        ran = run("tail", *where, *kept)
        assert ran.returncode == 0
        assert '_id="o-1"' in ran.stdout
        assert re.findall(r"^notice: (\w+): ", ran.stderr, re.MULTILINE) == [
            "Dropped", "Invalidated", "FeedEnded",
        ]  # fmt: skip


class TestOptions(CommandOptions):
    @pytest.fixture
    def shown(self, one, database):
        orders = one.client()[database].create_collection("orders")
        return Shown(
            one.uri(), f"{database}/orders",
            lambda key: orders.insert_one({"_id": key}),
            lambda key: orders.delete_one({"_id": key}),
            lambda key: {"_id": key},
            option="allow_missing=true",
        )  # fmt: skip
