"""Tests `multiclouddb certify` on the scripted server of DynamoDB."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from multiclouddb_certify import Run
from multiclouddb_conformance.waiting import wait_until
from testing.servers import cache_folder

from .conftest import NEIGHBOUR, SECRET, report_of

FEW = "TestNow and not idle"
QUICK = ("--account", "local", "--yes", "--report", "report")
# What these small requests cost.
PRICES = {"PutItem": 0.625e-6, "GetRecords": 0.2e-6}


def certified(run, url, *words, only=FEW):
    return run("certify", url, *QUICK, "--only", only, *words)


class TestRun:
    def test_it_passes_removes_everything_counts_and_reports_nothing_private(self, dynamo, run):
        dynamo.script.journal.clear()
        ran = certified(run, dynamo.url)
        assert ran.exit_code == 0, ran.output
        assert dynamo.names() == [NEIGHBOUR]
        text = report_of("report")
        content = json.loads(Path("report/report.json").read_text())
        assert content["counts"] == {"passed": 5}
        assert {test["outcome"] for test in content["tests"]} == {"passed"}
        assert all(test["seconds"] > 0 and test["units"]["request"] > 0 for test in content["tests"])
        assert content["deselected"]
        host = dynamo.script.endpoint_url.rpartition("/")[2]
        run_name = next(
            line.split()[1].rstrip(",") for line in ran.output.splitlines() if line.startswith("run ")
        )
        for private in (SECRET, host, "000000000000", run_name, "k0", os.environ["HOME"]):
            assert private not in text
        served = Counter(each.operation for each in dynamo.script.journal.calls())
        # The requests of the plan and of the last look are the parent's.
        for name in ("CreateTable", "PutItem", "GetRecords", "GetShardIterator", "DescribeStream"):
            assert content["operations"][name] == served[name], name
        estimated = content["estimated"]["units"]
        assert estimated["write request unit"] == pytest.approx(served["PutItem"], rel=0.2)
        assert estimated["stream read request"] == pytest.approx(served["GetRecords"], rel=0.2)
        assert estimated["request"] == pytest.approx(sum(content["operations"].values()), rel=0.2)

    def test_a_plan_creates_nothing(self, dynamo, run):
        dynamo.script.journal.clear()
        ran = run("certify", dynamo.url, "--plan", "--only", FEW)
        assert ran.exit_code == 0, ran.output
        made = {each.operation for each in dynamo.script.journal.calls()}
        assert made <= {"ListTables", "PutItem"}  # the latter asks for test control, and is refused
        assert dynamo.names() == [NEIGHBOUR]
        for word in ("mcdb-certify-", "dynamodb:CreateTable", "$0.0000002 a stream read request", " seconds"):
            assert word in ran.output

    def test_the_prices_of_the_user_count(self, dynamo, run):
        prices = ("--price", "write request unit=0.5", "--price", "stream read request=0")
        ran = certified(run, dynamo.url, "--budget", "1000", *prices)
        assert ran.exit_code == 0, ran.output
        assert "given with --price" in ran.output
        content = json.loads(Path("report/report.json").read_text())
        used = content["used"]
        reads = used["units"].get("read request unit", 0) * 0.125e-6
        assert used["usd"] == pytest.approx(used["units"]["write request unit"] * 0.5 + reads)
        assert content["estimated"]["usd"] > 0.5

    @pytest.mark.parametrize("price", ["write unit=1", "write request unit", "write request unit=-1"])
    def test_a_price_of_nothing_is_refused(self, dynamo, run, price):
        ran = run("certify", dynamo.url, "--plan", "--price", price)
        assert ran.exit_code == 3, ran.output
        assert "--price" in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1

    def test_a_failed_test_is_named_without_its_values(self, dynamo, run):
        dynamo.script.troubles.fail("TransactWriteItems", "AccessDeniedException", None)
        ran = certified(run, dynamo.url, only="TestTransactions")
        assert ran.exit_code == 11, ran.output
        text = report_of("report")
        assert "ClientError" in text
        assert "mcdb-certify" not in text
        assert dynamo.names() == [NEIGHBOUR]
        assert "ClientError" in Path("report.log").read_text()


class TestBudget:
    def test_at_the_bound_it_stops_within_ten_requests_and_cleans_up(self, dynamo, run):
        dynamo.script.journal.clear()
        ran = certified(run, dynamo.url, "--budget", "0.000025")
        assert ran.exit_code == 11, ran.output
        assert "the budget was spent" in ran.output
        assert dynamo.names() == [NEIGHBOUR]
        content = json.loads(Path("report/report.json").read_text())
        left, after = 0.000025, []
        for call in dynamo.script.journal.calls():
            if left <= 0:
                after.append(call.operation)
            left -= PRICES.get(call.operation, 0.0)
        assert left <= 0
        cleaning = {"ListTables", "DescribeTable", "ListTagsOfResource", "DeleteTable"}
        assert len([name for name in after if name not in cleaning]) <= 10
        assert "DeleteTable" in after
        assert {test["outcome"] for test in content["tests"]} >= {"stopped"}

    def test_a_budget_that_is_too_small_for_one_test_creates_nothing(self, dynamo, run):
        ran = certified(run, dynamo.url, "--budget", "0.00000001")
        assert ran.exit_code == 3
        assert "too small for one test" in ran.stderr
        # What the message asks for is enough.
        least = ran.stderr.rpartition("$")[2].strip()
        ran = certified(run, dynamo.url, "--budget", least)
        assert ran.exit_code in (0, 11), ran.output
        content = json.loads(Path("report/report.json").read_text())
        assert {"passed", "stopped"} & {test["outcome"] for test in content["tests"]}
        assert dynamo.names() == [NEIGHBOUR]


class Started:
    """A run in another process."""

    def __init__(self, url, only="TestCheckpoint or TestRecreated or TestSharing"):
        words = [sys.executable, "-m", "multiclouddb_cli", "certify", url, *QUICK, "--only", only]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def end(self, number):
        self.process.send_signal(number)
        return self.process.communicate(timeout=120)[0]


class TestEnd:
    def test_an_interrupted_run_keeps_its_log(self, dynamo):
        started = Started(dynamo.url)
        wait_until(lambda: len(dynamo.names()) > 1, 120)
        said = started.end(signal.SIGINT)
        assert "report.log" in said
        log = Path("report.log").read_text()
        assert "most recent call first" in log
        assert "child.py" in log
        assert dynamo.names() == [NEIGHBOUR]

    def test_clean_touches_no_run_that_goes_on_and_no_other_owner(self, dynamo, run):
        other = {"StreamSpecification": {"StreamEnabled": False}}
        tags = [{"Key": "mcdb-certify-owner", "Value": "zzzz"}]
        later, before = Run.new(), Run.new(hours=-1)
        theirs = f"mcdb-certify-{later.name[:5]}zzzz00-items-1"
        expired = f"mcdb-certify-{before.name[:5]}zzzz00-items-1"
        untagged = f"mcdb-certify-{before.name}-items-1"
        foreign = "mcdb-certify-notes"
        for name in (theirs, expired):
            dynamo.make(name, Tags=tags, **other)
        for name in (untagged, foreign):
            dynamo.make(name, **other)
        started = Started(dynamo.url)
        wait_until(lambda: len(dynamo.names()) > 5, 120)
        ran = run("certify", "clean", dynamo.url)
        assert ran.exit_code == 0, ran.output
        assert [line for line in ran.output.splitlines() if line.startswith("removed ")] == [
            f"removed {expired}"
        ]
        assert f"kept {theirs}" in ran.output
        started.end(signal.SIGINT)
        assert dynamo.names() == sorted([NEIGHBOUR, theirs, untagged, foreign])
        ran = run("certify", "clean", dynamo.url, "--run", f"{later.name[:5]}zzzz00")
        assert ran.output == f"removed {theirs}\n"
        ran = run("certify", "clean", dynamo.url, "--run", "zzzz00")
        assert ran.exit_code == 3, ran.output
        assert "not the name of a run" in ran.stderr

    @pytest.mark.parametrize("goes_on", [False, True])
    def test_clean_removes_the_files_of_a_run_that_was_killed(self, dynamo, run, goes_on):
        name = Run.new().name
        files = cache_folder("certify") / name
        files.mkdir(parents=True)
        with (files.parent / f"{name}.lock").open("w") as lock:
            if goes_on:
                fcntl.flock(lock, fcntl.LOCK_EX)
            ran = run("certify", "clean", dynamo.url)
        assert ran.output == "nothing was left\n"
        assert files.exists() is goes_on


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["--yes"], "--account: is missing"),
            (["--yes", "--account", "123"], "--account: is '123'"),
            (["--account", "local"], "--yes: is missing"),
            (["--account", "local", "--yes", "--only", "no_such_test"], "selects no test"),
            (["--account", "local", "--yes", "--only", "TestNow and ("], "--only: Wrong expression"),
        ],
    )
    def test_it_says_in_one_line_what_to_do_and_creates_nothing(self, dynamo, run, words, said):
        if "--only" not in words:
            words = [*words, "--only", FEW]
        ran = run("certify", dynamo.url, *words)
        assert ran.exit_code == 3, ran.output
        assert said in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1
        assert dynamo.names() == [NEIGHBOUR]

    @pytest.mark.parametrize(
        ("code", "exit_code"), [("LimitExceededException", 8), ("AccessDeniedException", 5)]
    )
    def test_what_the_service_refuses_to_the_first_test_ends_the_run(self, dynamo, run, code, exit_code):
        """A quota was reached, or a permission is missing that no dry run shows."""
        dynamo.script.troubles.fail("CreateTable", code, None)
        ran = certified(run, dynamo.url)
        assert ran.exit_code == exit_code, ran.output
        assert len([line for line in ran.stderr.splitlines() if line.startswith("error: ")]) == 1
        assert dynamo.names() == [NEIGHBOUR]
        content = json.loads(Path("report/report.json").read_text())
        assert content["counts"] == {"failed": 1, "not run": 4}

    def test_a_run_that_exists_is_not_overwritten(self, dynamo, run):
        folder = Path("report")
        folder.mkdir()
        (folder / "report.md").write_text("mine")
        ran = certified(run, dynamo.url)
        assert ran.exit_code == 3
        assert "exists already" in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1
        assert [each.read_text() for each in folder.iterdir()] == ["mine"]
        assert dynamo.names() == [NEIGHBOUR]

    def test_a_region_that_does_not_exist_is_named(self, run, monkeypatch):
        def unknown(host, *_):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        began = time.monotonic()
        ran = run("certify", "dynamo://mars-1", "--plan")
        assert ran.exit_code == 8, ran.output
        assert "dynamodb.mars-1.amazonaws.com" in ran.stderr
        assert "this host has no address" in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1
        assert time.monotonic() - began < 60

    @pytest.mark.parametrize(
        ("code", "exit_code"),
        [("AccessDeniedException", 5), ("UnrecognizedClientException", 5), ("LimitExceededException", 8)],
    )
    def test_an_error_of_the_service_is_one_line(self, dynamo, run, code, exit_code):
        dynamo.script.troubles.fail("ListTables", code, None)
        ran = certified(run, dynamo.url)
        dynamo.script.troubles.end()
        assert ran.exit_code == exit_code, ran.output
        assert len(ran.stderr.strip().splitlines()) == 1
        assert dynamo.names() == [NEIGHBOUR]

    def test_a_url_of_nobody_names_the_harnesses(self, run):
        ran = run("certify", "redis://here")
        assert ran.exit_code == 3
        assert "dynamo" in ran.stderr

    def test_a_wrong_clock_is_told(self, dynamo, run, monkeypatch):
        from multiclouddb_certify.certification import RunPlace
        from multiclouddb_certify.dynamo import DynamoCertification

        def an_hour_ago(self, url):  # when it is asked, because the command takes a while to begin
            return RunPlace("123", "eu-west-1", "Amazon DynamoDB", datetime.now(UTC) - timedelta(hours=1))

        monkeypatch.setattr(DynamoCertification, "place", an_hour_ago)
        ran = certified(run, dynamo.url)
        assert ran.exit_code == 3
        assert "+3600 s off" in ran.stderr
