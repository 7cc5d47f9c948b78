"""Tests the drills on local servers: each is interrupted, and resumed in a new process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.servers import server_module
from multiclouddb_certify.cosmos import native_account
from multiclouddb_conformance.command_line import run as in_new_process
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_cosmos_emulator.account import Account
from multiclouddb_spanner_emulator import ScriptedSpanner

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
    assert not Path("drill/drill.json").exists()


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


def test_the_schema_changes_under_a_stream():
    with ScriptedSpanner() as server:
        server.create("projects/tests/instances/tests/databases/shop")
        url = f"spanner://tests/tests?emulator_host={server.host}"
        words = [sys.executable, "-m", "multiclouddb_cli", "certify", "start", url, "--drill", "ddl", *START]
        began = subprocess.Popen([*words, *map(str, folder())], stdout=subprocess.PIPE, text=True)
        assert began.stdout is not None
        while not next(began.stdout).startswith("2. "):
            pass
        began.kill()
        began.communicate()
        assert step() == 1
        assert "passed" in resumed()


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (["--drill", "no"], 3, "there is no drill"),
            (["--drill", "split"], 3, "is one of cosmos"),
            (["--drill", "failover"], 3, "is one of cosmos"),
            (["--drill", "rollover"], 3, "--account"),
        ],
    )
    def test_a_drill_that_cannot_start_says_why(self, dynamo, run, words, code, said):
        ran = run("certify", "start", dynamo.url, *words, "--folder", "drill")
        assert ran.exit_code == code, ran.output
        assert said in ran.stderr
        assert dynamo.names() == ["orders"]

    def test_a_drill_that_is_done_by_hand_lists_its_steps(self, emulator, run):
        url = f"cosmos://{emulator.endpoint.split('/')[2]}?tls=false"
        ran = run("certify", "start", url, "--drill", "failover", "--folder", "drill")
        assert ran.exit_code == 7, ran.output
        assert "needs the real service" in ran.stderr
        assert "failover-priority-change" in ran.stderr
        assert not Path("drill").exists()

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
