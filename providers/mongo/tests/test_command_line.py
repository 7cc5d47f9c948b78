"""Tests the command line on MongoDB with real processes that are killed and restarted."""

import re
from datetime import UTC, datetime

import pytest

from multiclouddb_api import event_from_json
from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, facts, follow, run, said

from .servers.failpoint import fail_command

SECRET = "a-hidden-key"


@pytest.fixture
def orders(one, database):
    return one.client()[database].create_collection("orders")


@pytest.fixture
def where(one, orders):
    """Return the two command-line arguments that name the server and the collection."""
    return one.uri(), f"{orders.database.name}/orders"


def tail_of(where, folder, start="now"):
    return Tail(*where, "--from", start, "--checkpoint", folder / "position")


class TestTail:
    def test_killed_again_and_again_it_misses_nothing(self, one, orders, where, tmp_path):
        """During writes, the command is killed seven times: at its start, in a page, and after failures."""
        orders.insert_one({"_id": "before"})
        tail = tail_of(where, tmp_path)
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

    @pytest.mark.parametrize("scope", ["database", "cluster"])
    def test_of_more_than_a_collection_says_where_each_document_is(self, orders, where, scope):
        start, name = datetime.now(UTC).isoformat(), orders.database.name
        orders.insert_one({"_id": "o-1"})
        orders.database["items"].insert_one({"_id": 7})
        address = [name] if scope == "database" else []
        words = ("--scope", scope, "--from", start, "--until-idle")
        ran = run(
            "tail", where[0], *address, *words
        )  # a cluster's feed may report a collection that another test dropped
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


class TestToken:
    @pytest.fixture
    def token(self, where, tmp_path):
        """Return a token of `now`, from before the first event, as an argument."""
        said("tail", *where, "--until-idle", "--checkpoint", tmp_path / "position")
        return f"@{tmp_path}/position"

    def test_of_now_resumes_before_the_first_event(self, orders, where, token):
        found = facts("token", "check", where[0], token)
        assert (found["resumes"], found["changes"]) == ("yes", "none at present")
        orders.insert_one({"_id": "o-1", "secret": "a document"})
        out = said("token", "check", where[0], token)
        assert re.search(r"^changes +waiting$", out, re.MULTILINE)
        assert "a document" not in out


NOBODY = "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=300"
FAILURES = {
    "no such collection": ("URL", "main/no-such", 4, "NOT_FOUND", "no-such"),
    "no database": ("URL", "orders", 3, "INVALID_REQUEST", "database"),
    "a view": ("URL", "DATABASE/view", 3, "INVALID_REQUEST", "view"),
    "a collection of the server": ("URL", "admin/system.version", 3, "INVALID_REQUEST", "ordinary"),
    "nobody at the address": (NOBODY, "main/orders", 8, "TRANSIENT_FAILURE", "replicaSet"),
    "a wrong password": (f"mongodb://me:{SECRET}@HOST/", "main/orders", 5, "AUTHENTICATION_FAILED", "user"),
    "an unknown option": (
        f"mongodb://me:{SECRET}@HOST/?no=such", "main/orders", 3, "INVALID_REQUEST", "'no'",
    ),
    "a password that is not escaped": (
        f"mongodb://me:{SECRET}/x@HOST/", "main/orders", 3, "INVALID_REQUEST", "quote_plus",
    ),
}  # fmt: skip


class TestFailures:
    """Each failure prints one line that says what to do and shows no secret."""

    # The exit code shows the category.

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
        if SECRET in url:
            assert SECRET not in run(*words, "--debug").stderr

    def test_in_the_middle_leaves_the_checkpoint_good(self, one, orders, where, tmp_path):
        url = one.uri(appName="refused")
        words = (
            "tail", url, where[1], "--from", "beginning", "--until-idle",
            "--checkpoint", tmp_path / "position", "--exact",
        )  # fmt: skip
        orders.insert_one({"_id": "o-1"})
        said(*words)
        orders.insert_one({"_id": "o-2"})
        with fail_command(one, commands=["aggregate"], app_name="refused", times=None, errorCode=13):
            self.check(run(*words), 5, "AUTHORIZATION_FAILED", "MongoDB 13")
        (line,) = said(*words).splitlines()
        assert event_from_json(line).key.components == {"_id": "o-2"}
