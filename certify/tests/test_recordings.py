"""Tests recordings: what is stored, what is hidden, and what the comparison with another server finds."""

import getpass
import json
import re
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from azure.cosmos import PartitionKey
from azure.cosmos.exceptions import CosmosResourceNotFoundError

from multiclouddb_api import MulticloudDbError
from multiclouddb_certify.certification import load_certification
from multiclouddb_certify.cosmos import native_account
from multiclouddb_certify.recordings import Known, Recorder, Rules, replay
from multiclouddb_certify.recordings.hiding import leaks
from multiclouddb_certify.wire import Call, WireResponse
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_dynamo_emulator import Habits, ScriptedStreams
from recordings.command import CHOSEN, KNOWN, RECORDINGS, SERVERS, differences, is_missing

from .conftest import SECRET

MOST_BYTES = 300_000
FEW = "test_a_create_arrives or collection_that_is_not_there"
HERE = {socket.gethostname(): "host", getpass.getuser() + "@": "user", SECRET: "secret"}


def files_of(service):
    return sorted((RECORDINGS / service).glob("*.yaml"))


@pytest.mark.parametrize(
    ("service", "server"),
    [(service, server) for service in CHOSEN for server in SERVERS[service] if not is_missing(server)],
)
def test_every_server_answers_as_recorded(service, server):
    """Each difference is repaired, or listed with its reason; an entry that nothing needs is removed."""
    with SERVERS[service][server]() as url:
        found, unknown, unused = differences(service, server, url, RECORDINGS / service)
    assert list(map(str, unknown)) == []
    assert unused == []
    assert len(found) > 0 or Known.of(KNOWN, service, server).entries == []


@pytest.mark.parametrize("service", CHOSEN)
def test_the_recordings_of_the_repository_are_small_and_name_nobody(service):
    texts = [file.read_text() for file in files_of(service)]
    assert len(texts) > 10
    assert sum(map(len, texts)) < MOST_BYTES
    assert [name for text in texts for name in leaks(text, HERE)] == []
    assert not any("cut: " in text for text in texts)


PLANTED = [
    SECRET,
    "AKIAIOSFODNN7EXAMPLE",
    "arn:aws:dynamodb:eu-west-1:111122223333:table/orders",
    "111122223333",
    "C2y6yDjf5/R+ob0N8A7Cgv30VRDJIWEHLM+4QDU5DE2nQ9nDuVTqobD4b8mGGyPMbIZnqyMsEcaGQy67XIw/Jw==",
    "Bearer ya29.a0AfH6SMBx0123456789",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "mongodb://admin:pass-word@db/",
    "jo@example.org",
    "orders.documents.azure.com",
    "cluster0-shard-00.ab1cd.mongodb.net:27017",
    "10.1.2.3:8000",
    "localhost:9010",
    "type=master&ver=1.0&sig=dGhpcyBpcyBhIHNpZ25hdHVyZQ==",
]


class Plain:
    """A service whose exchanges are what the call and the answer contain."""

    rules = Rules({"token": "token", "text": "words"}, dropped=frozenset({"noise"}))

    def secrets(self):
        return {SECRET: "secret"}

    def read(self, call, answer, store):
        store(lambda: {"operation": call.operation, "request": call.body, "answer": answer.native})


def recorded(folder, *exchanges):
    recorder = Recorder(folder, Plain(), HERE)
    recorder.begin()
    for request, answer in exchanges:
        recorder.answered(Call("Ask", {}, request), WireResponse(200, {}, answer))
    recorder.end("TestX::test_y[a/b]")
    (file,) = folder.iterdir()
    return file.name, file.read_text()


class TestStored:
    @pytest.mark.parametrize("secret", PLANTED)
    def test_a_secret_is_hidden_wherever_it_stands(self, tmp_path, secret):
        planted = {
            "value": secret,
            secret: 1,
            "deep": [{"in": f"before {secret} after"}],
            "text": f"at {secret}!",
        }
        assert list(leaks(json.dumps(planted), HERE)) != []
        _, text = recorded(tmp_path / "made", (planted, planted))
        assert secret not in text
        assert list(leaks(text, HERE)) == []

    def test_equal_values_have_one_placeholder_and_what_is_dropped_is_not_there(self, tmp_path):
        exchange = {"token": "b", "noise": 1}, {"token": "a", "tokens": {"token": 7}}
        name, text = recorded(tmp_path / "made", exchange, exchange)
        assert re.fullmatch(r"[\w.,\[\]-]+\.yaml", name)
        first, second = yaml.safe_load(text)
        assert first == second
        assert first["request"] == {"token": "<token 1>"}
        assert first["answer"] == {"token": "<token 2>", "tokens": {"token": "<token 3, number>"}}

    def test_sizes_are_bounded_and_the_file_says_what_was_cut(self, tmp_path):
        many = [({"n": number}, {"value": "x" * 100_000}) for number in range(1000)]
        _, text = recorded(tmp_path / "made", *many)
        assert len(text) < 110_000
        *exchanges, last = yaml.safe_load(text)
        assert "99800" in exchanges[0]["answer"]["value"]
        assert last == {"cut": f"{1000 - len(exchanges)} further exchanges"}


def certified(run, url, folder, only=FEW):
    words = ["certify", url, "--account", "local", "--yes", "--report", "report", "--record", folder]
    ran = run(*words, "--only", only)
    assert ran.exit_code == 0, ran.output
    return sorted(Path(folder).iterdir())


class TestCommand:
    def test_a_file_for_each_test_can_be_sent_to_another_server(self, dynamo, run):
        files = certified(run, dynamo.url, "made")
        assert len(files) == 2
        text = "".join(file.read_text() for file in files)
        host = dynamo.script.endpoint_url.rpartition("/")[2]
        assert list(leaks(text, {**HERE, host: "host"})) == []
        assert "mcdb-certify" not in text.replace("mcdb-certify-owner", "").replace(
            "mcdb-certify-expires", ""
        )
        with ScriptedStreams() as other:
            assert list(replay(files, codec_of(other), "mcdb-certify-replay")) == []

    def test_cosmos_db_too(self, run, monkeypatch, tmp_path):
        with CosmosEmulator() as server:
            monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
            url = url_of(server)
            certified(run, url, "made")
            codec = load_certification(url).codec(url)
            recorder = Recorder(tmp_path / "made", codec, HERE)
            recorder.begin()
            with load_certification(url).wire(recorder), native_account(url) as native:
                database = native.create_database("shop")
                container = database.create_container("items", PartitionKey("/id"))
                for number in range(3):
                    container.upsert_item({"id": f"k{number}", "n": number})
                assert len(list(container.query_items_change_feed(start_time="Beginning"))) == 3
                with pytest.raises(CosmosResourceNotFoundError):
                    container.read_item("k9", "k9")
            recorder.end("TestX::test_y")
        files = sorted(Path("made").iterdir())
        assert len(files) == 3
        text = "".join(file.read_text() for file in files)
        assert list(leaks(text, {**HERE, server.key: "key"})) == []
        assert "ActivityId: <activity 1>" in " ".join(files[-1].read_text().split())
        with CosmosEmulator() as other:
            codec = load_certification(url).codec(url_of(other))
            assert list(map(str, replay(files[-1:], codec, "mcdb-certify-replay"))) == []

    @pytest.mark.parametrize(("url", "folder"), [("embedded:///any.db", "new"), (None, "full")])
    def test_what_cannot_be_recorded_is_refused(self, dynamo, run, url, folder):
        Path("full").mkdir()
        Path("full/mine.yaml").write_text("[]")
        words = [url or dynamo.url, "--account", "local", "--yes", "--only", FEW, "--record", folder]
        ran = run("certify", *words)
        assert ran.exit_code == 3, ran.output
        assert "--record" in ran.stderr
        assert Path("full/mine.yaml").read_text() == "[]"


def url_of(server):
    return f"cosmos://{server.endpoint.split('/')[2]}?tls=false"


def codec_of(server):
    url = f"dynamo://eu-west-1?endpoint_url={server.endpoint_url}"
    return load_certification(url).codec(url)


@contextmanager
def changed(tmp_path):
    """Provide the exchanges of a recording; they are written to a file at the end of the block."""
    (source,) = [file for file in files_of("dynamo") if "everything" in file.name]
    exchanges = yaml.safe_load(source.read_text())
    yield exchanges
    (tmp_path / "TestX.test_y.yaml").write_text(yaml.safe_dump(exchanges))


def found_in(tmp_path, habits=None):
    known = Known.of(KNOWN, "dynamo", "scripted")
    with ScriptedStreams(habits=habits) as server:
        found = replay(sorted(tmp_path.glob("*.yaml")), codec_of(server), "mcdb-certify-replay")
        return {(each.operation, each.path) for each in found if each not in known}


def first(exchanges, operation):
    return next(
        each["answer"]
        for each in exchanges
        if each["operation"] == operation and each["answer"]["body"].get("Records", True)
    )


class TestCompared:
    def test_without_a_change_nothing_is_found(self, tmp_path):
        with changed(tmp_path):
            pass
        assert found_in(tmp_path) == set()

    def test_a_changed_status(self, tmp_path):
        with changed(tmp_path) as exchanges:
            first(exchanges, "PutItem")["status"] = 400
        assert found_in(tmp_path) == {("PutItem", "status")}

    def test_a_missing_field(self, tmp_path):
        with changed(tmp_path) as exchanges:
            first(exchanges, "CreateTable")["body"]["TableDescription"]["Locked"] = False
        assert found_in(tmp_path) == {("CreateTable", "body.TableDescription.Locked")}

    def test_a_further_field(self, tmp_path):
        with changed(tmp_path) as exchanges:
            del first(exchanges, "CreateTable")["body"]["TableDescription"]["ItemCount"]
        assert found_in(tmp_path) == {("CreateTable", "body.TableDescription.ItemCount")}

    def test_a_missing_header(self, tmp_path):
        with changed(tmp_path) as exchanges:
            first(exchanges, "PutItem")["headers"]["content-type"] = "text/plain"
        assert found_in(tmp_path) == {("PutItem", "headers.content-type")}

    @pytest.mark.parametrize(
        ("field", "value"), [("CreationDateTime", "<time 1>"), ("ItemCount", "0"), ("ItemCount", None)]
    )
    def test_a_changed_type(self, tmp_path, field, value):
        """A value that differs in every run has its type too."""
        with changed(tmp_path) as exchanges:
            first(exchanges, "CreateTable")["body"]["TableDescription"][field] = value
        assert found_in(tmp_path) == {("CreateTable", f"body.TableDescription.{field}")}

    def test_a_changed_value(self, tmp_path):
        with changed(tmp_path) as exchanges:
            first(exchanges, "GetRecords")["body"]["Records"][2]["eventName"] = "REMOVE"
        assert found_in(tmp_path) == {("GetRecords", "body.Records.2.eventName")}

    def test_a_changed_order(self, tmp_path):
        with changed(tmp_path) as exchanges:
            first(exchanges, "GetRecords")["body"]["Records"].reverse()
        assert ("GetRecords", "body.Records.0.dynamodb.Keys.id.S") in found_in(tmp_path)

    def test_a_missing_record(self, tmp_path):
        with changed(tmp_path) as exchanges:
            records = first(exchanges, "GetRecords")["body"]["Records"]
            records.append(records[-1])
        assert ("GetRecords", "body.Records") in found_in(tmp_path)

    def test_another_value_where_the_recording_has_the_same(self, tmp_path):
        with changed(tmp_path) as exchanges:
            records = first(exchanges, "GetRecords")["body"]["Records"]
            records[1]["eventID"] = records[0]["eventID"]
        assert ("GetRecords", "body.Records.1.eventID") in found_in(tmp_path)

    def test_a_server_may_cut_a_list_into_other_portions(self, tmp_path):
        with changed(tmp_path):
            pass
        assert found_in(tmp_path, Habits(empty_pages=3)) == set()

    def test_what_was_cut_is_not_sent(self, tmp_path):
        with changed(tmp_path) as exchanges:
            exchanges[:] = [*exchanges[:1], {"cut": "7 further exchanges"}]
        assert found_in(tmp_path) == set()

    def test_a_value_that_no_answer_gave_is_made(self, tmp_path):
        with changed(tmp_path) as exchanges:
            first(exchanges, "CreateTable")["body"]["TableDescription"]["Locked"] = "<lock 1>"
            put = next(each for each in exchanges if each["operation"] == "PutItem")
            put["request"]["body"]["Item"]["lock"] = {"S": "<lock 1>"}
        assert ("CreateTable", "body.TableDescription.Locked") in found_in(tmp_path)

    @pytest.mark.parametrize("text", ["{", "- a", "7", "- {operation: Scan}"])
    def test_what_is_no_recording_is_refused(self, tmp_path, text):
        (tmp_path / "TestX.yaml").write_text(text)
        with pytest.raises(MulticloudDbError) as caught:
            found_in(tmp_path)
        assert "TestX.yaml" in caught.value.message
