"""Tests the command line on MongoDB with real processes that are killed and restarted."""

import re
from datetime import UTC, datetime

import pytest

from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, follow, run, said
from multiclouddb_conformance.command_options import CommandOptions, Shown

SECRET = "a-hidden-key"


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
            [(None, 1), (None, 300), (forget_cursors, 100), (None, 7), (step_down, 100), (None, 1)],
        )  # fmt: skip
        assert tail.keys() == writer.written
        assert len(writer.written) > 500

    def test_of_a_cluster_says_where_each_document_is(self, orders, where):
        start, name = datetime.now(UTC).isoformat(), orders.database.name
        orders.insert_one({"_id": "o-1"})
        orders.database["items"].insert_one({"_id": 7})
        # The feed may report a collection that another test dropped.
        ran = run("tail", where[0], "--scope", "cluster", "--from", start, "--until-idle")
        assert ran.returncode == 0, ran.stderr
        lines = [line.split()[1:4] for line in ran.stdout.splitlines()]
        assert [line for line in lines if line[1].startswith(f"{name}/")] == [
            ["CREATE", f"{name}/orders", '_id="o-1"'],
            ["CREATE", f"{name}/items", "_id=7"],
        ]

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


FAILURES = {
    "no such collection": ("URL", "main/no-such", 4, "NOT_FOUND", "no-such"),
    "a view": ("URL", "DATABASE/view", 3, "INVALID_REQUEST", "view"),
    "a wrong password": (f"mongodb://me:{SECRET}@HOST/", "main/orders", 5, "AUTHENTICATION_FAILED", "user"),
    "an open password": (f"mongodb://me:{SECRET}/x@HOST/", "main/orders", 3, "INVALID_REQUEST", "quote_plus"),
}


class TestFailures:
    """Each failure prints one line that says what to do and shows no secret."""

    def check(self, ran, code, category, *words):
        assert_refused(ran, code, category, *words, hidden=[SECRET])
        assert len(ran.stderr.splitlines()) == 1

    @pytest.mark.parametrize("case", FAILURES)
    def test_of_the_set_up(self, one, orders, case):
        orders.database.command({"create": "view", "viewOn": "orders", "pipeline": []})
        url, address, *expected = FAILURES[case]
        url = one.uri() if url == "URL" else url.replace("HOST", one.members[0])
        words = ("tail", url, address.replace("DATABASE", orders.database.name), "--until-idle")
        self.check(run(*words), *expected)


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
