"""Tests `multiclouddb certify` by URL on a local server of each service: it passes, and leaves nothing."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from azure.cosmos import PartitionKey
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner as spanner_client

from multiclouddb_certify import Granted, Run, RunPlace
from multiclouddb_certify import run as certify_run
from multiclouddb_certify.certification import load_certification
from multiclouddb_certify.cosmos import CosmosCertification, native_account
from multiclouddb_certify.dynamo import simulated
from multiclouddb_certify.mongo import MongoCertification
from multiclouddb_certify.run import plan
from multiclouddb_certify.wire import Call, Meter, WireResponse
from multiclouddb_cosmos.config import CosmosConfig
from multiclouddb_cosmos_emulator import CosmosEmulator
from multiclouddb_cosmos_emulator.service import Service
from multiclouddb_spanner_emulator import ScriptedSpanner
from testing.provider_servers import server_module

from .conftest import SECRET, report_of

HOUR = "100 RU/s for an hour"
FEW = "TestNow and empty"


def certified(run, url, only=FEW):
    ran = run("certify", url, "--account", "local", "--yes", "--report", "report", "--only", only)
    log = Path("report.log")
    assert ran.exit_code == 0, ran.output + (log.read_text() if log.exists() else "")
    content = json.loads(Path("report/report.json").read_text())
    assert content["counts"]["passed"] == len(content["tests"]) > 0
    estimated = content["estimated"]["units"]
    for unit, number in content["used"]["units"].items():
        if unit != HOUR and only == FEW:  # a run may end in another clock hour than was expected
            assert estimated[unit] == pytest.approx(number, rel=0.2), unit
    return content


@pytest.fixture
def cosmos(monkeypatch):
    with CosmosEmulator() as server:
        monkeypatch.setenv("AZURE_COSMOS_KEY", server.key)
        yield server


@pytest.fixture(scope="module")
def mongod():
    module = server_module("mongo", "mongod")
    made = module.shared("certify", oplog_mb=1, auth=True)
    yield made
    module.stop()


@pytest.fixture
def spanner():
    with ScriptedSpanner() as server:
        server.create("projects/tests/instances/tests/databases/shop")
        yield server


def test_cosmos_db(cosmos, run):
    url = f"cosmos://{cosmos.endpoint.split('/')[2]}?tls=false"
    with native_account(url) as native:
        native.create_database("shop")
        began = time.time()
        content = certified(run, url)
        assert [each["id"] for each in native.list_databases()] == ["shop"]
    most = 1 + time.time() // 3600 - began // 3600
    for counted in (content["estimated"], content["used"]):
        hours = counted["units"][HOUR] / 4
        assert 1 <= hours <= most
        assert counted["usd"] == pytest.approx(0.032 * hours)
    assert cosmos.key not in report_of("report")


def unmeasured(url):
    """Return the tests of a plan whose units and seconds nobody has measured."""
    with plan(url, 1.0) as planned:
        provider, tests = planned.certification.provider_id, planned.tests
        assert len(tests) > 100
        known = json.loads((Path(certify_run.__file__).parent / "estimates" / f"{provider}.json").read_text())
        missing = [name for name in tests if name not in known]
        assert planned.unmeasured == len(missing)
    return missing


# To measure them, run certify on the local server with --only, and python -m multiclouddb_certify.measure.
class TestEstimates:
    """A test of us8 that no other service runs may be missing in the estimates of one."""

    def test_cosmos_db(self, cosmos):
        assert unmeasured(f"cosmos://{cosmos.endpoint.split('/')[2]}?tls=false") == []

    def test_dynamodb(self, dynamo):
        assert unmeasured(dynamo.url) == []

    def test_mongodb(self, mongod):
        assert unmeasured(mongod.uri()) == []

    def test_spanner(self, spanner):
        assert unmeasured(f"spanner://tests/tests?emulator_host={spanner.host}") == []


def test_at_the_bound_a_run_on_cosmos_db_stops_within_ten_requests_and_cleans_up(cosmos, run, monkeypatch):
    answer, answered = Service.answer, []

    def counted(service, request, route):
        reply = answer(service, request, route)
        answered.append((route.operation, reply.charge))
        return reply

    monkeypatch.setattr(Service, "answer", counted)
    url = f"cosmos://{cosmos.endpoint.split('/')[2]}?tls=false"
    words = ["--yes", "--report", "report", "--only", "TestNow", "--budget", "250"]
    prices = ["--price", "request unit=1", "--price", f"{HOUR}=0"]
    ran = run("certify", url, "--account", "local", *words, *prices)
    assert ran.exit_code == 11, ran.output
    assert "the budget was spent" in ran.output
    left, after = 250, []
    for operation, charge in answered[[name for name, _ in answered].index("CreateDatabase") :]:
        if left < 0:
            after.append(operation)
        left -= charge
    cleaning = {"ReadAccount", "ListDatabases", "DeleteDatabase"}
    assert len([name for name in after if name not in cleaning]) <= 10
    assert "DeleteDatabase" in after
    with native_account(url) as native:
        assert list(native.list_databases()) == []
    content = json.loads(Path("report/report.json").read_text())
    assert {test["outcome"] for test in content["tests"]} == {"passed", "stopped", "not run"}


def test_after_the_hour_that_the_budget_pays_no_request_is_sent(cosmos, monkeypatch):
    clock = Clock("2026-11-24T10:00+00:00")
    monkeypatch.setattr("multiclouddb_certify.cosmos.time", clock)
    certification = CosmosCertification()

    class StopError(Exception):
        pass

    def stop():
        raise StopError

    meter = Meter(0.032, certification.prices, certification.units_of, lambda *_: None, stop)
    url = f"cosmos://{cosmos.endpoint.split('/')[2]}?tls=false"
    with certification.wire(meter), native_account(url) as native:
        database = native.create_database("shop")
        database.create_container("orders", PartitionKey("/id"))
        clock.now += 3600
        with suppress(StopError):  # the first request shows the hour; it may be one of the SDK's own
            database.read()
        served = cosmos.journal.count()
        with pytest.raises(StopError):
            database.read()
        assert cosmos.journal.count() == served


class Clock:
    """Shows a time that the test sets."""

    def __init__(self, text):
        self.now = datetime.fromisoformat(text).timestamp()

    def time(self):
        return self.now


@pytest.mark.parametrize(
    ("began", "minutes", "hours"),
    [("2026-11-24T10:00+00:00", 59, 1), ("2026-11-24T10:58+00:00", 3, 2), ("2026-11-24T10:58+00:00", 63, 3)],
)
def test_cosmos_db_bills_each_clock_hour(monkeypatch, began, minutes, hours):
    clock = Clock(began)
    monkeypatch.setattr("multiclouddb_certify.cosmos.time", clock)
    certification = CosmosCertification()
    expected = certification.fixed_units(minutes * 60)[HOUR]
    counted = certification.units_of(Call("GET account", {}, None), WireResponse(200, {})).get(HOUR, 0)
    for operation in ["POST dbs", *["ReadChangeFeed"] * minutes]:
        counted += certification.units_of(Call(operation, {}, None), WireResponse(200, {})).get(HOUR, 0)
        clock.now += 60 if operation == "ReadChangeFeed" else 0
    counted += certification.units_of(Call("POST docs", {}, None), WireResponse(200, {})).get(HOUR, 0)
    assert (expected, counted) == (4 * hours, 4 * hours)


def test_an_account_without_the_feed_is_told_and_nothing_is_left(cosmos, run):
    cosmos.all_versions(False)
    url = f"cosmos://{cosmos.endpoint.split('/')[2]}?tls=false"
    ran = run("certify", url, "--account", "local", "--yes", "--report", "report", "--only", FEW)
    assert ran.exit_code == 3, ran.output
    assert len([line for line in ran.stderr.splitlines() if line.startswith("error: ")]) == 1
    with native_account(url) as native:
        assert list(native.list_databases()) == []


def test_mongodb(mongod, run):
    native = mongod.client()
    native["shop"]["orders"].insert_one({"_id": 1})
    certified(run, mongod.uri())
    assert {name for name in native.list_database_names() if name not in ("admin", "config", "local")} == {
        "shop"
    }
    text = report_of("report")
    assert "a/secret" not in text
    assert mongod.members[0] not in text


def test_the_permissions_of_mongodb_are_those_that_the_user_has(mongod, run):
    native = mongod.client()
    native.admin.command("createUser", "reader", pwd="x", roles=["readAnyDatabase"])
    url = mongod.uri().partition("@")[2]
    found = MongoCertification().permissions(f"mongodb://reader:x@{url}", Run.new())
    granted = {each.name: each.granted for each in found}
    assert (granted["find"], granted["insert"]) == (Granted.YES, Granted.NO)
    ran = run("certify", f"mongodb://reader:x@{url}", "--account", "local", "--yes")
    assert ran.exit_code == 5, ran.output
    assert "lack changeStream" not in ran.stderr
    assert " insert," in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_a_server_without_change_streams_is_refused(run, tmp_path):
    module = server_module("mongo", "mongod")
    (tmp_path / "data").mkdir()
    with module._reserve() as reserved:
        port = str(reserved.getsockname()[1])
        command = [module.fetch(), "--dbpath", tmp_path / "data", "--port", port, "--bind_ip", "127.0.0.1"]
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)
        try:
            ran = run("certify", f"mongodb://127.0.0.1:{port}/", "--account", "local", "--yes")
        finally:
            process.kill()
            process.wait()
    assert ran.exit_code == 7, ran.output
    assert "start it with --replSet" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_an_instance_that_does_not_exist_is_named(spanner, run):
    ran = run("certify", f"spanner://tests/other?emulator_host={spanner.host}", "--plan")
    assert ran.exit_code == 4, ran.output
    assert "projects/tests/instances/other" in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1


def test_a_credential_that_may_not_create_databases_says_what_to_set(cosmos, run, monkeypatch):
    monkeypatch.setattr(CosmosConfig, "find_credential", lambda config: object())
    monkeypatch.setattr(CosmosCertification, "place", lambda *_: RunPlace("local", "x", "x"))
    url = f"cosmos://{cosmos.endpoint.split('/')[2]}?tls=false"
    ran = run("certify", url, "--account", "local", "--yes")
    assert ran.exit_code == 5, ran.output
    assert "create and delete databases (no role of the data plane allows it; set AZURE_COSMOS_KEY)" in (
        ran.stderr
    )


@pytest.mark.parametrize("name", ["cosmos", "mongod"])
def test_the_clock_of_a_service_is_known_before_anything_is_created(request, name):
    server = request.getfixturevalue(name)
    url = server.uri() if name == "mongod" else f"cosmos://{server.endpoint.split('/')[2]}?tls=false"
    clock = load_certification(url).place(url).clock
    assert abs((datetime.now(UTC) - clock).total_seconds()) < 60


@pytest.mark.parametrize(("seconds", "expires"), [(1, True), (60, False)])
def test_mongodb_expires_documents_if_it_looks_often(mongod, seconds, expires):
    mongod.client().admin.command("setParameter", 1, ttlMonitorSleepSecs=seconds)
    found = MongoCertification().harness(mongod.uri(), Run.new())
    assert (found.can_expire, found.can_trim) == (expires, True)


def test_spanner(spanner, run):
    url = f"spanner://tests/tests?emulator_host={spanner.host}"
    certified(run, url)
    native = spanner_client.Client(
        "tests", AnonymousCredentials(), client_options={"api_endpoint": spanner.host}
    )
    found = [each.name.rpartition("/")[2] for each in native.instance("tests").list_databases()]
    assert found == ["shop"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cosmos", ["retire_after_the_last_event", "was_trimmed_has_expired", "skip_token", "is_an_expiry"]),
        ("spanner", ["names_the_merged_child", "was_trimmed_has_expired", "skip_token", "is_an_expiry"]),
    ],
)
def test_our_own_servers_split_trim_expire_and_damage_by_url(request, run, name, words):
    server = request.getfixturevalue(name)
    if name == "cosmos":
        url = f"cosmos://{server.endpoint.split('/')[2]}?tls=false"
    else:
        url = f"spanner://tests/tests?emulator_host={server.host}"
    content = certified(run, url, " or ".join(words))
    for word in words:
        assert any(word in test["name"] for test in content["tests"]), word


def test_the_embedded_store(run, tmp_path):
    certified(run, f"embedded://{tmp_path}/mine.db")
    assert not (tmp_path / "mine.db").exists()


class Answers:
    """Stands for STS and IAM."""

    def __init__(self, arn, decisions):
        self.arn, self.decisions, self.asked = arn, decisions, None

    def get_caller_identity(self):
        return {"Account": "111122223333", "Arn": self.arn}

    def simulate_principal_policy(self, **asked):
        self.asked = asked
        results = [{"EvalActionName": name, "EvalDecision": said} for name, said in self.decisions.items()]
        return {"EvaluationResults": results}


def test_the_permissions_of_dynamodb_are_those_of_the_simulator():
    decisions = {"dynamodb:PutItem": "allowed", "dynamodb:CreateTable": "implicitDeny"}
    answers = Answers("arn:aws:sts::111122223333:assumed-role/tester/session", decisions)
    run = Run.new()
    found = simulated(answers, answers, list(decisions), "eu-west-1", run)
    assert [each.granted for each in found] == [Granted.YES, Granted.NO]
    assert answers.asked["PolicySourceArn"] == "arn:aws:iam::111122223333:role/tester"
    assert answers.asked["ResourceArns"] == [f"arn:aws:dynamodb:eu-west-1:111122223333:table/{run.prefix}-*"]


def test_a_denied_permission_ends_the_command(dynamo, run, monkeypatch):
    from multiclouddb_certify import Permission
    from multiclouddb_certify.dynamo import DynamoCertification

    denied = [Permission("dynamodb:CreateTable", Granted.NO)]
    monkeypatch.setattr(DynamoCertification, "permissions", lambda *_: denied)
    ran = run("certify", dynamo.url, "--account", "local", "--yes")
    assert ran.exit_code == 5, ran.output
    assert "dynamodb:CreateTable" in ran.stderr
    assert dynamo.names() == ["orders"]


def test_a_terminal_shows_the_test_the_time_and_the_cost(dynamo):
    main, worker = pty.openpty()
    words = ["certify", dynamo.url, "--account", "local", "--report", "report", "--only", FEW]
    process = subprocess.Popen(
        [sys.executable, "-m", "multiclouddb_cli", *words], stdin=worker, stdout=worker, stderr=worker,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    )  # fmt: skip
    os.close(worker)
    os.write(main, b"y\n")
    shown = b""
    while process.poll() is None or select.select([main], [], [], 0)[0]:
        if select.select([main], [], [], 0.2)[0]:
            try:
                shown += os.read(main, 65536)
            except OSError:
                break
    os.close(main)
    assert process.wait() == 0, shown
    for word in (b"TestNow::", b"0:00:0", b"of $2.00", b"Create this?"):
        assert word in shown
    assert SECRET.encode() not in shown
