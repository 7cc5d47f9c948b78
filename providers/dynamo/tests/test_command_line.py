"""Tests the command line on DynamoDB with real processes that are killed and restarted."""

import re

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, ResourceAddress, connect
from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, follow, run, said

from .servers.server import CREDENTIALS
from .test_us8_scripted import Scripted

TABLE = "orders"
SECRET = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]


def url_of(server):
    return f"dynamo://eu-west-1?endpoint_url={server.endpoint_url}"


def put(server, *keys):
    for key in keys:
        server.client().put_item(TableName=TABLE, Item={"pk": {"S": key}, "secret": {"S": "a document"}})


def tail_of(server, folder, start="now"):
    return Tail(url_of(server), TABLE, "--from", start, "--checkpoint", folder / "position")


def open_shards(server):
    return server.script.open_shards(TABLE)


def split(server, into):
    """Close the first open shard. A rollover makes one child, and a split makes two children."""
    shard = open_shards(server)[0]
    if into == 1:
        server.script.roll_over(shard)
    else:
        server.script.split(shard)


@pytest.fixture
def scripted():
    with Scripted() as server:
        server.create_table(TABLE)
        yield server


class TestTail:
    def test_killed_again_and_again_it_misses_nothing(self, scripted, tmp_path):
        """During writes, rollovers and splits, the command is killed at its start or within a page."""
        put(scripted, "before")
        tail, writer = tail_of(scripted, tmp_path), Writer(lambda key: put(scripted, key), pause=0.01)
        in_one, in_two = (lambda: split(scripted, 1)), (lambda: split(scripted, 2))
        follow(tail, writer, [(None, 1), (in_one, 40), (None, 200), (in_two, 1), (in_one, 40), (in_two, 7)])
        assert sorted(tail.keys()) == writer.written
        assert len(writer.written) > 200
        assert len(open_shards(scripted)) == 3

    @pytest.mark.parametrize(("steps", "minutes"), [((None, 1, 2), 20)])
    def test_killed_before_the_first_event_it_misses_nothing(self, scripted, tmp_path, steps, minutes):
        """The command is killed many times, over a longer period than the lifetime of an iterator."""
        put(scripted, "before")
        scripted.script.advance(300)
        tail = tail_of(scripted, tmp_path)
        for children in steps:
            if children:
                split(scripted, children)
            tail.run_until_saved()
        keys = [f"o-{number}" for number in range(10)]
        put(scripted, *keys)
        scripted.script.advance(60 * minutes)
        tail.finish()
        assert sorted(tail.keys()) == keys
        assert len(tail.seen) == len(keys)


class TestPartitions:
    def test_are_the_shards_below_their_parents(self, scripted):
        split(scripted, 1)
        split(scripted, 2)
        first, *lines = said("partitions", url_of(scripted), TABLE).splitlines()
        assert first == "4 partitions: 2 open, 2 closed"
        shapes = [re.fullmatch(r"( *)shardId-[\w-]+  (open|closed)(?:  dynamo:\S+)?", line) for line in lines]
        assert [(len(shape[1]), shape[2]) for shape in shapes] == [
            (0, "closed"), (2, "closed"), (4, "open"), (4, "open"),
        ]  # fmt: skip


class TestToken:
    @pytest.fixture
    def token(self, scripted, tmp_path):
        """Return, as an argument, a token that was made at `now` before the first event."""
        said("tail", url_of(scripted), TABLE, "--until-idle", "--checkpoint", tmp_path / "position")
        return f"@{tmp_path}/position"

    def test_a_day_later_has_expired(self, scripted, token):
        put(scripted, "o-1")
        said("tail", url_of(scripted), TABLE, "--until-idle", "--checkpoint", token[1:])
        put(scripted, "o-2")
        split(scripted, 1)
        scripted.script.advance(25 * 3600)
        ran = run("token", "check", url_of(scripted), token)
        assert (ran.returncode, ran.stderr.count("\n")) == (6, 1)
        assert ran.stderr.startswith("error: [CHECKPOINT_EXPIRED] ")
        assert "24 hours" in ran.stderr
        assert re.search(r"^resumes +no$", ran.stdout, re.MULTILINE)

    def test_of_the_beginning_of_a_closed_shard_is_good_for_an_hour(self, scripted, tmp_path):
        split(scripted, 1)
        with connect(url_of(scripted)) as client:
            request = ChangeFeedRequest(ResourceAddress(collection=TABLE), Beginning())
            (_, token), *_ = client.plan_partitions(request)  # the closed shard comes first
        scripted.script.advance(50 * 60)
        assert "yes" in said("token", "check", url_of(scripted), token)
        scripted.script.advance(20 * 60)
        assert run("token", "check", url_of(scripted), token).returncode == 6


NOBODY = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
CLOSED = "dynamo://eu-west-1?endpoint_url=http://127.0.0.1:9"
FAILURES = {
    "no such table": ("no-such", "URL", {}, 4, "NOT_FOUND", "no-such"),
    "no credentials": (TABLE, "URL", NOBODY, 5, "AUTHENTICATION_FAILED", "credential chain"),
    "nobody at the endpoint": (TABLE, CLOSED, {}, 8, "TRANSIENT_FAILURE", "endpoint_url"),
    "a key in the url": (
        TABLE, "dynamo://me:a-hidden-key@eu-west-1", {}, 3, "INVALID_REQUEST", "own chain",
    ),
}  # fmt: skip


class TestFailures:
    """Each failure prints one line that says what to do and shows no secret.

    The exit code shows the category.
    """

    def check(self, ran, code, category, *words):
        assert_refused(ran, code, category, *words, hidden=[SECRET, "a-hidden-key"])

    @pytest.mark.parametrize("case", FAILURES)
    def test_of_the_set_up(self, scripted, case):
        scripted.create_table("bare", None)
        table, url, environment, *expected = FAILURES[case]
        url = url.replace("URL", url_of(scripted))
        self.check(run("tail", url, table, "--until-idle", **environment), *expected)

    def test_of_a_stream_that_was_switched_off(self, scripted, tmp_path):
        """A disabled stream cannot be read from a start position.

        A read from a checkpoint continues to the end of the stream, where the feed ends.
        """
        words, kept = ("tail", url_of(scripted), TABLE), ("--checkpoint", tmp_path / "position")
        said(*words, *kept, "--until-idle")
        put(scripted, "o-1")
        scripted.client().update_table(TableName=TABLE, StreamSpecification={"StreamEnabled": False})
        self.check(run(*words), 3, "INVALID_REQUEST", "disabled")
        ran = run(*words, *kept)
        assert ran.returncode == 0
        assert ran.stderr.startswith("notice: FeedEnded: ")
        assert 'pk="o-1"' in ran.stdout
