"""Tests the command line on DynamoDB with real processes that are killed and restarted."""

import json
import re

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, ResourceAddress, connect, event_from_json
from multiclouddb_conformance.command_line import Tail, Writer, assert_refused, facts, follow, run, said
from multiclouddb_conformance.waiting import SOON

from .servers.local import LocalDynamo
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
    if isinstance(server, Scripted):
        return server.script.open_shards(TABLE)
    return server.open_shards(server.client().describe_table(TableName=TABLE)["Table"]["LatestStreamArn"])


def split(server, into):
    """Close the first open shard. A rollover makes one child, and a split makes two children."""
    shard = open_shards(server)[0]
    if isinstance(server, LocalDynamo):
        server.split(shard, into)
    elif into == 1:
        server.script.roll_over(shard)
    else:
        server.script.split(shard)


@pytest.fixture
def scripted():
    with Scripted() as server:
        server.create_table(TABLE)
        yield server


@pytest.fixture(params=["scripted", "local"])
def server(request, tmp_path):
    made = Scripted() if request.param == "scripted" else LocalDynamo(tmp_path)
    with made:
        made.create_table(TABLE)
        yield made


class TestTail:
    def test_killed_again_and_again_it_misses_nothing(self, server, tmp_path):
        """During writes, rollovers and splits, the command is killed at its start or within a page."""
        put(server, "before")
        tail, writer = tail_of(server, tmp_path), Writer(lambda key: put(server, key), pause=0.01)
        in_one, in_two = (lambda: split(server, 1)), (lambda: split(server, 2))
        follow(tail, writer, [(None, 1), (in_one, 40), (None, 200), (in_two, 1), (in_one, 40), (in_two, 7)])
        assert sorted(tail.keys()) == writer.written
        assert len(writer.written) > 200
        assert len(open_shards(server)) == 3

    @pytest.mark.parametrize("minutes", [0, 20])
    @pytest.mark.parametrize("steps", [(None, None), (None, 1, 2)], ids=["one shard", "roll-over and split"])
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

    def test_killed_while_it_prints_it_misses_nothing(self, scripted, tmp_path):
        keys = [f"o-{number:04}" for number in range(1500)]
        tail = tail_of(scripted, tmp_path, "beginning")
        for life in range(3):
            # New changes are written for each process, because the previous process may have read all changes
            # before it was killed.
            put(scripted, *keys[500 * life : 500 * (life + 1)])
            with tail.running() as came:
                came.get(timeout=SOON)
        tail.finish()
        assert sorted(tail.keys()) == keys

    def test_its_lines_have_whole_documents_and_types(self, scripted):
        put(scripted, "o-1")
        item = {"pk": {"S": "o-1"}, "total": {"N": "30"}, "share": {"N": "0.50"}}
        scripted.client().put_item(TableName=TABLE, Item=item)
        scripted.client().delete_item(TableName=TABLE, Key={"pk": {"S": "o-1"}})
        lines = said("tail", url_of(scripted), TABLE, "--from", "beginning", "--until-idle").splitlines()
        assert [line.split()[1:3] for line in lines] == [
            [kind, 'pk="o-1"'] for kind in ("CREATE", "UPDATE", "DELETE")
        ]
        assert '"total":30' in lines[1]
        assert lines[2].endswith('pk="o-1"')

    def test_of_one_shard_has_the_keys_of_that_shard(self, scripted):
        split(scripted, 2)
        put(scripted, *(f"o-{number}" for number in range(20)))
        found = {}
        for item in json.loads(said("partitions", url_of(scripted), TABLE, "--json")):
            scope = f"partition:{item['partition_id']}"
            words = ("--from", "beginning", "--until-idle", "--exact", "--scope", scope)
            lines = said("tail", url_of(scripted), TABLE, *words).splitlines()
            found[item["native_id"]] = {event_from_json(line).key.components["pk"] for line in lines}
        for number in range(20):
            shard = scripted.script.shard_of(TABLE, {"pk": {"S": f"o-{number}"}})
            assert [name for name, keys in found.items() if f"o-{number}" in keys] == [shard]


class TestPartitions:
    def test_are_the_shards_below_their_parents(self, server):
        split(server, 1)
        split(server, 2)
        first, *lines = said("partitions", url_of(server), TABLE).splitlines()
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

    def test_of_now_resumes_before_the_first_event(self, scripted, token):
        found = facts("token", "check", url_of(scripted), token)
        assert (found["resumes"], found["changes"]) == ("yes", "none at present")
        put(scripted, "o-1")
        out = said("token", "check", url_of(scripted), token)
        assert re.search(r"^changes +waiting$", out, re.MULTILINE)
        assert "a document" not in out

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

    def test_of_a_closed_shard_expires_a_day_later_even_when_all_was_read(self, scripted, token):
        put(scripted, "o-1")
        said("tail", url_of(scripted), TABLE, "--until-idle", "--checkpoint", token[1:])
        split(scripted, 1)
        scripted.script.advance(23 * 3600)
        assert "yes" in said("token", "check", url_of(scripted), token)
        scripted.script.advance(2 * 3600)
        assert run("token", "check", url_of(scripted), token).returncode == 6

    def test_of_the_beginning_of_a_closed_shard_is_good_for_an_hour(self, scripted, tmp_path):
        split(scripted, 1)
        with connect(url_of(scripted)) as client:
            request = ChangeFeedRequest(ResourceAddress(collection=TABLE), Beginning())
            (_, token), *_ = client.plan_partitions(request)  # the closed shard comes first
        scripted.script.advance(50 * 60)
        assert "yes" in said("token", "check", url_of(scripted), token)
        scripted.script.advance(20 * 60)
        assert run("token", "check", url_of(scripted), token).returncode == 6

    def test_of_a_table_that_was_made_anew_is_refused(self, scripted, token):
        scripted.client().delete_table(TableName=TABLE)
        scripted.script.advance(1)
        scripted.create_table(TABLE)
        ran = run("token", "check", url_of(scripted), token)
        assert ran.returncode == 3
        assert "recreated" in ran.stderr

    def test_is_inspected_without_a_service(self, scripted, token):
        scripted.close()
        found = facts("token", "inspect", token)
        assert [found[name] for name in ("provider", "resource", "partitions")] == [
            "dynamo", TABLE, "1 (1 active)",
        ]  # fmt: skip
        assert "stream/" in found["incarnation"]


class TestCapabilities:
    def test_are_told_with_their_ways_out(self, scripted):
        scripted.script.journal.clear()
        out = said("capabilities", url_of(scripted))
        assert re.search("^CHANGE_FEED_BEGINNING +native$", out, re.MULTILINE)
        assert re.search("^CHANGE_FEED_POINT_IN_TIME +unsupported$", out, re.MULTILINE)
        assert re.search("^dynamo CHANGE_FEED_POINT_IN_TIME: .*Beginning", out, re.MULTILINE)
        assert list(scripted.script.journal.calls()) == []


NOBODY = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
CLOSED = "dynamo://eu-west-1?endpoint_url=http://127.0.0.1:9"
FAILURES = {
    "no such table": ("no-such", "URL", {}, 4, "NOT_FOUND", "no-such"),
    "no stream": ("bare", "URL", {}, 3, "INVALID_REQUEST", "update-table"),
    "a database": ("main/orders", "URL", {}, 3, "INVALID_REQUEST", "no databases"),
    "no credentials": (TABLE, "URL", NOBODY, 5, "AUTHENTICATION_FAILED", "credential chain"),
    "half of the credentials": (
        TABLE, "URL", {**NOBODY, "AWS_ACCESS_KEY_ID": "a-hidden-key"}, 5, "AUTHENTICATION_FAILED", "missing",
    ),
    "nobody at the endpoint": (TABLE, CLOSED, {}, 8, "TRANSIENT_FAILURE", "endpoint_url"),
    "a password in the endpoint": (
        TABLE, "dynamo://r?endpoint_url=http://me:a-hidden-key@h", {}, 3, "INVALID_REQUEST", "own chain",
    ),
    "a key in the url": (
        TABLE, "dynamo://me:a-hidden-key@eu-west-1", {}, 3, "INVALID_REQUEST", "own chain",
    ),
}  # fmt: skip
ANSWERS = {
    "AccessDeniedException": (5, "AUTHORIZATION_FAILED"),
    "UnrecognizedClientException": (5, "AUTHENTICATION_FAILED"),
    "InvalidSignatureException": (5, "AUTHENTICATION_FAILED"),
    "ExpiredTokenException": (5, "AUTHENTICATION_FAILED"),
    "ThrottlingException": (8, "THROTTLED"),
    "InternalServerError": (8, "TRANSIENT_FAILURE"),
}


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

    def test_of_another_command(self, scripted):
        self.check(run("partitions", url_of(scripted), "no-such"), 4, "NOT_FOUND", "no-such")

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

    @pytest.mark.parametrize("code", ANSWERS)
    def test_of_the_service(self, scripted, code):
        quoted = f"The canonical string was 'x-amz-security-token:{SECRET}'"
        message = quoted if code == "InvalidSignatureException" else None
        scripted.script.troubles.fail(None, code, None, message=message)
        words = ("tail", url_of(scripted), TABLE, "--until-idle")
        self.check(run(*words), *ANSWERS[code], code)
        if message:
            assert SECRET not in run(*words, "--debug").stderr

    def test_in_the_middle_leaves_the_checkpoint_good(self, scripted, tmp_path):
        put(scripted, "o-1")
        words = (
            "tail", url_of(scripted), TABLE, "--from", "beginning", "--until-idle",
            "--checkpoint", tmp_path / "position", "--exact",
        )  # fmt: skip
        said(*words)
        put(scripted, "o-2")
        trouble = scripted.script.troubles.fail("GetRecords", "AccessDeniedException", None)
        self.check(run(*words), 5, "AUTHORIZATION_FAILED", "GetRecords")
        trouble.end()
        (line,) = said(*words).splitlines()
        assert event_from_json(line).key.components == {"pk": "o-2"}
