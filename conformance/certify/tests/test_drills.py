"""Tests the drills on local servers: each is interrupted, and resumed in a new process."""

import json
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pymongo.errors import AutoReconnect

from multiclouddb_certify import Granted, Permission
from multiclouddb_certify.certification import RunPlace
from multiclouddb_certify.cosmos import native_account
from multiclouddb_certify.dynamo import DynamoCertification
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_cosmos_emulator.account import Account
from multiclouddb_cosmos_emulator.message import Reply
from multiclouddb_spanner_emulator import ScriptedSpanner
from multiclouddb_spanner_emulator.database import Database
from testing.command_line import run as in_new_process
from testing.provider_servers import server_module

EARLIER = datetime(2026, 1, 1, tzinfo=UTC)
START = ("--account", "local", "--yes")


@pytest.fixture
def local():
    """Provide DynamoDB Local, whose clock can be moved."""
    with server_module("dynamo", "local").LocalDynamo() as server:
        yield server


@pytest.fixture
def emulator(monkeypatch):
    with CosmosEmulator() as server:
        monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
        yield server


def folder():
    """The helper of `in_new_process` has another working directory."""
    return "--folder", Path("drill").absolute()


def step():
    return json.loads(Path("drill/drill.json").read_text())["step"]


def resumed():
    ran = in_new_process("certify", "resume", Path("drill").absolute())
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_rollover_and_the_end_of_retention_are_picked_up_again(local):
    url = f"dynamo://eu-west-1?endpoint_url={local.endpoint_url}"
    ran = in_new_process("certify", "start", url, "--drill", "rollover", *START, *folder())
    assert ran.returncode == 0, ran.stderr
    assert "waits" in ran.stdout
    assert (step(), len(local.client().list_tables()["TableNames"])) == (1, 1)
    assert "waits" in resumed()
    assert "kept" in in_new_process("certify", "clean", url).stdout
    local.rollover()
    assert "waits" in resumed()
    assert step() == 3
    local.rollover()
    local.dilate_time(25)
    assert "passed" in resumed()
    assert local.client().list_tables()["TableNames"] == []
    page = Path("drill/report.md").read_text()
    assert page.startswith("# The drill rollover of dynamo\n\n- ended: it passed\n- cost: $")
    assert page.count(" UTC: ") == 6
    assert "endpoint" not in page
    assert "has ended: it passed" in in_new_process("certify", "resume", Path("drill").absolute()).stderr


def test_a_split_by_throughput_is_picked_up_again(emulator, monkeypatch):
    url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
    grow, grown = Account.set_throughput, []
    # The service takes minutes to split; until then, the container keeps its range.
    monkeypatch.setattr(Account, "set_throughput", lambda *asked: grown.append(asked))
    ran = in_new_process("certify", "start", url, "--drill", "split", *START, *folder())
    assert ran.returncode == 0, ran.stderr
    assert "waits" in ran.stdout
    assert (step(), len(grown)) == (2, 1)
    assert "waits" in resumed()
    with emulator._lock:
        grow(*grown[0])
    assert "passed" in resumed()
    with native_account(url) as native:
        assert list(native.list_databases()) == []


def test_merged_ranges_are_refused_with_the_way_out(emulator):
    url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
    ran = in_new_process("certify", "start", url, "--drill", "merged", *START, *folder())
    assert ran.returncode == 0, ran.stderr
    assert "az cosmosdb sql container merge" in ran.stdout
    assert step() == 3
    assert "each clock hour costs $0.91" in ran.stdout  # 400 RU/s of the database, 11,000 of the container
    database, container = json.loads(Path("drill/drill.json").read_text())["data"]["address"]
    ranges = sorted(emulator.partitions(database, container), key=lambda each: each["low"])
    emulator.merge(database, container, *(each["id"] for each in ranges[:2]))
    assert "passed" in resumed()
    with native_account(url) as native:
        assert list(native.list_databases()) == []


def test_credentials_that_expire_are_waited_for_and_the_read_goes_on(dynamo):
    ran = in_new_process("certify", "start", dynamo.url, "--drill", "credentials", *START, *folder())
    assert ran.returncode == 0, ran.stderr
    assert "still valid" in ran.stdout
    dynamo.script.troubles.fail("GetRecords", "ExpiredTokenException", None)
    assert "set new ones" in resumed()
    dynamo.script.troubles.end()
    assert "passed" in resumed()
    assert dynamo.names() == ["orders"]


def test_four_readers_of_a_throttled_shard_read_everything(dynamo):
    dynamo.script.troubles.fail("GetRecords", "ThrottlingException", None)
    ran = in_new_process("certify", "start", dynamo.url, "--drill", "throttling", *START, *folder())
    assert ran.returncode == 8, ran.stderr
    assert step() == 0
    dynamo.script.troubles.end()
    dynamo.script.troubles.fail("GetRecords", "ThrottlingException", None, every=2)
    assert "passed" in resumed()
    assert dynamo.names() == ["orders"]


def test_a_drill_that_waits_can_be_given_up(emulator):
    url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
    ran = in_new_process("certify", "start", url, "--drill", "merged", *START, *folder())
    name = json.loads(Path("drill/drill.json").read_text())["run"]
    assert "waits" in ran.stdout, ran.stderr
    kept = in_new_process("certify", "clean", url).stdout
    assert kept == (f"kept mcdb-certify-{name}: it is a drill that waits; to give it up, add --run {name}\n")
    removed = in_new_process("certify", "clean", url, "--run", f"mcdb-certify-{name}").stdout
    assert removed == f"removed mcdb-certify-{name}\n"
    with native_account(url) as native:
        assert list(native.list_databases()) == []
    assert in_new_process("certify", "clean", url).stdout == "nothing was left\n"
    ran = in_new_process("certify", "resume", Path("drill").absolute())
    assert (ran.returncode, "has ended: it was given up" in ran.stderr) == (3, True)


def test_the_hours_between_two_processes_are_counted(emulator, monkeypatch):
    """The container grows in its first hour, and nobody looks for a day."""
    url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
    grow = Account.set_throughput
    monkeypatch.setattr(Account, "set_throughput", lambda *asked: None)
    ran = in_new_process("certify", "start", url, "--drill", "split", *START, *folder(), "--budget", "3")
    assert ran.returncode == 0, ran.stderr
    monkeypatch.setattr(Account, "set_throughput", grow)
    file = Path("drill/drill.json")
    state = json.loads(file.read_text())
    assert state["usd"] == pytest.approx(0.064)  # 400 RU/s of the database, 400 of the container
    file.write_text(json.dumps(state | {"hour": state["hour"] - 24}))
    resumed()
    assert json.loads(file.read_text())["usd"] == pytest.approx(0.064 * 25)
    file.write_text(json.dumps(state | {"hour": state["hour"] - 48}))
    ran = in_new_process("certify", "resume", Path("drill").absolute())
    assert ran.returncode == 9, ran.stdout
    assert "has spent its budget of $3" in ran.stderr
    with native_account(url) as native:
        assert list(native.list_databases()) == []


def test_a_feed_goes_on_in_another_region(emulator, monkeypatch):
    url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
    reply, regions = Reply.of, ["First", "Second"]

    def of(body, *args, **kwargs):
        if isinstance(body, dict) and "writableLocations" in body:
            (there,) = body["writableLocations"]
            body["readableLocations"] = [{**there, "name": name} for name in regions]
            body["writableLocations"] = body["readableLocations"][:1]
        return reply(body, *args, **kwargs)

    monkeypatch.setattr(Reply, "of", staticmethod(of))
    ran = in_new_process("certify", "start", url, "--drill", "failover", *START, *folder())
    assert ran.returncode == 0, ran.stderr
    assert "First still takes the writes; change the order of the regions: az cosmosdb" in ran.stdout
    assert step() == 1
    regions.reverse()
    assert "passed" in resumed()
    with native_account(url) as native:
        assert list(native.list_databases()) == []


def test_a_drill_fails_if_something_was_lost(emulator, monkeypatch):
    url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
    monkeypatch.setattr(Account, "set_throughput", lambda *asked: None)
    ran = in_new_process("certify", "start", url, "--drill", "split", *START, *folder())
    assert "waits" in ran.stdout, ran.stderr
    database, container = json.loads(Path("drill/drill.json").read_text())["data"]["address"]
    (whole,) = emulator.partitions(database, container)
    emulator.lose(database, container, whole["id"], 1)
    emulator.split(database, container, whole["id"])
    ran = in_new_process("certify", "resume", Path("drill").absolute())
    assert ran.returncode == 9, ran.stdout
    assert "the drill failed: the changes of the documents" in ran.stderr
    assert "the drill failed" in json.loads(Path("drill/drill.json").read_text())["ended"]
    with native_account(url) as native:
        assert list(native.list_databases()) == []


def test_another_member_is_elected(monkeypatch):
    module = server_module("mongo", "mongod")
    with module.ReplicaSet(module.folder(), 3, election_ms=module.QUICK_ELECTION_MS) as servers:
        before = servers.wait_primary()
        monkeypatch.setenv("PLACE", servers.uri())
        ran = in_new_process("certify", "start", "env:PLACE", "--drill", "election", *START, *folder())
        for _ in range(10):
            if "waits" in ran.stdout:
                ran = in_new_process("certify", "resume", Path("drill").absolute())
        assert "passed" in ran.stdout, f"{ran.stdout}\n{ran.stderr}"
        assert servers.wait_primary() != before
        assert not {*servers.client().list_database_names()} - {"admin", "config", "local"}


def test_who_may_not_ask_for_an_election_waits_for_it(monkeypatch):
    module = server_module("mongo", "mongod")
    roles = ["readWriteAnyDatabase", "dbAdminAnyDatabase"]
    with module.ReplicaSet(module.folder(), 3, auth=True, election_ms=module.QUICK_ELECTION_MS) as servers:
        before = servers.wait_primary()
        servers.client().admin.command("createUser", "writer", pwd="x", roles=roles)
        monkeypatch.setenv("PLACE", f"mongodb://writer:x@{servers.uri().partition('@')[2]}")
        ran = in_new_process("certify", "start", "env:PLACE", "--drill", "election", *START, *folder())
        assert "still takes the writes" in ran.stdout, ran.stderr
        assert step() == 2
        with suppress(AutoReconnect):
            servers.client().admin.command("replSetStepDown", 60)
        wait_until(lambda: servers.wait_primary() != before, 60)
        assert "passed" in resumed()


def google():
    """Return Google's emulator, which the Google Cloud SDK has."""
    return server_module("spanner", "emulator").Emulator()


def test_the_schema_changes_under_a_stream_of_googles_emulator():
    server = google()
    try:
        ran = in_new_process("certify", "start", server.url, "--drill", "ddl", *START, *folder())
        assert "passed" in ran.stdout, ran.stderr
        assert list(server.instance.list_databases()) == []
    finally:
        server.stop()


def test_the_schema_changes_under_a_stream(monkeypatch):
    execute, executed = Database.execute, []

    def noted(database, statement):
        execute(database, statement)
        executed.extend(word for word in ("ADD COLUMN", "DROP COLUMN") if word in statement)

    monkeypatch.setattr(Database, "execute", noted)
    with ScriptedSpanner() as server:
        server.create("projects/tests/instances/tests/databases/shop")
        url = f"spanner://tests/tests?emulator_host={server.host}"
        words = [sys.executable, "-m", "multiclouddb_cli", "certify", "start", url, "--drill", "ddl", *START]
        began = subprocess.Popen([*words, *map(str, folder())], stdout=subprocess.PIPE, text=True)
        assert began.stdout is not None
        while not next(began.stdout).startswith("3. "):
            pass
        began.kill()
        began.communicate()
        # As if the kill had come before the step was stored; the third may have begun already.
        state = json.loads(Path("drill/drill.json").read_text())
        Path("drill/drill.json").write_text(json.dumps(state | {"step": 1}))
        assert "passed" in resumed()
        assert executed in (each := ["ADD COLUMN", "DROP COLUMN"], each * 2)


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (["--drill", "no"], 3, "there is no drill"),
            (["--drill", "split"], 3, "is one of cosmos; choose one of rollover, credentials, throttling"),
            (["--drill", "failover"], 3, "is one of cosmos"),
            (["--drill", "rollover"], 3, "--account"),
        ],
    )
    def test_a_drill_that_cannot_start_says_why(self, dynamo, run, words, code, said):
        ran = run("certify", "start", dynamo.url, *words, "--folder", "drill")
        assert ran.exit_code == code, ran.output
        assert said in ran.stderr
        assert dynamo.names() == ["orders"]

    def test_a_budget_below_the_price_of_the_first_hour_creates_nothing(self, emulator, run):
        url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
        ran = run("certify", "start", url, "--drill", "split", *START, *folder(), "--budget", "0.911")
        assert ran.exit_code == 3, ran.output
        assert "$0.911 is too small for this drill; it has to be at least $0.912" in ran.stderr
        assert not Path("drill").exists()
        with native_account(url) as native:
            assert list(native.list_databases()) == []

    def test_a_key_that_is_not_set_is_named(self, emulator, run, monkeypatch):
        monkeypatch.setenv("AZURE_COSMOS_KEY", "")
        url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
        ran = run("certify", "start", url, "--drill", "split", *START, *folder())
        assert ran.exit_code == 3, ran.output
        assert "AZURE_COSMOS_KEY: is not set" in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1

    def test_a_failover_needs_two_regions(self, emulator, run):
        url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
        ran = run("certify", "start", url, "--drill", "failover", "--folder", "drill", *START)
        assert ran.exit_code == 7, ran.output
        assert "the account has one region" in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1
        assert not Path("drill").exists()

    def test_an_election_needs_three_members(self, run, monkeypatch):
        module = server_module("mongo", "mongod")
        with module.ReplicaSet(module.folder()) as servers:
            monkeypatch.setenv("PLACE", servers.uri())
            ran = run("certify", "start", "env:PLACE", "--drill", "election", "--folder", "drill", *START)
        assert ran.exit_code == 7, ran.output
        assert "it needs three" in ran.stderr
        assert not Path("drill").exists()

    def test_a_folder_that_exists_is_not_overwritten(self, dynamo, run):
        Path("drill").mkdir()
        Path("drill/mine").touch()
        ran = run("certify", "start", dynamo.url, "--drill", "rollover", *START, *folder())
        assert ran.exit_code == 3, ran.output
        assert "exists already" in ran.stderr
        assert dynamo.names() == ["orders"]

    @pytest.mark.parametrize(
        ("changed", "code", "said"),
        [
            ({"place": lambda *_: RunPlace("local", "x", "x", problem="no")}, 7, "certify: no"),
            ({"permissions": lambda *_: [Permission("dynamodb:Scan", Granted.NO)]}, 5, "dynamodb:Scan"),
            ({"place": lambda *_: RunPlace("123", "x", "x", EARLIER)}, 3, "s off the service's"),
        ],
    )
    def test_a_drill_is_refused_like_a_run(self, dynamo, run, monkeypatch, changed, code, said):
        for name, value in changed.items():
            monkeypatch.setattr(DynamoCertification, name, value)
        ran = run("certify", "start", dynamo.url, "--drill", "rollover", *START, *folder())
        assert ran.exit_code == code, ran.output
        assert said in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1
        assert not Path("drill").exists()
        assert dynamo.names() == ["orders"]

    def test_an_expired_drill_is_removed(self, dynamo, run):
        ran = run("certify", "start", dynamo.url, "--drill", "rollover", *START, *folder())
        assert ran.exit_code == 0, ran.output
        file = Path("drill/drill.json")
        state = json.loads(file.read_text())
        (table,) = (name for name in dynamo.names() if name != "orders")
        # The name of a run says when it expires.
        old = f"00001{state['run'][5:]}"
        dynamo.native.delete_table(TableName=table)
        dynamo.make(f"mcdb-certify-{old}-drill-0", Tags=[{"Key": "mcdb-certify-owner", "Value": "x"}])
        file.write_text(json.dumps(state | {"run": old}))
        ran = run("certify", "resume", "drill")
        assert ran.exit_code == 6, ran.output
        assert "expired" in ran.stderr
        assert dynamo.names() == ["orders"]

    @pytest.mark.parametrize("text", [None, "{", "[]", '{"drill": 1}'])
    def test_a_folder_that_holds_no_drill_is_refused(self, run, text):
        Path("drill").mkdir()
        if text is not None:
            Path("drill/drill.json").write_text(text)
        ran = run("certify", "resume", "drill")
        assert ran.exit_code == 3, ran.output
        assert len(ran.stderr.strip().splitlines()) == 1
