"""Tests that a check without an answer proves nothing about a token: it is neither good nor lost."""

import json

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

import multiclouddb_api as api
from multiclouddb_cli.exporter import Exporter, Position
from multiclouddb_cli.session import ConnectedFeed
from multiclouddb_spi.continuation.token import decode_token, encode_token

THROTTLED = api.MulticloudDbError(
    "the service throttles; wait", api.ErrorDetail(api.ErrorCategory.THROTTLED, retryable=True)
)
EXPIRED = api.MulticloudDbError("gone", api.ErrorDetail(api.ErrorCategory.CHECKPOINT_EXPIRED))


@pytest.fixture
def token(url, store):
    with api.connect(url) as client:
        request = api.ChangeFeedRequest(
            api.ResourceAddress("main", "orders"), api.Beginning(), max_page_size=1
        )
        return client.read_changes(request).continuation_token


@pytest.fixture
def failing(monkeypatch):
    """Let the reads of single partitions fail, each with one of some errors."""

    def begin(*errors):
        read, left = ConnectedFeed.read, list(errors)

        def reading(session, request, wait_seconds=0.0):
            if isinstance(request.scope, api.PhysicalPartition) and left:
                raise left.pop(0)
            return read(session, request, wait_seconds)

        monkeypatch.setattr(ConnectedFeed, "read", reading)

    return begin


def test_of_a_server_that_cannot_be_reached_nothing_is_known(run, fake, token):
    token = encode_token(attrs.evolve(decode_token(token), provider_id="fake"))
    ran = run("token", "check", f"{fake}/DEAD-ONCE", token, "--json")
    assert ran.exit_code == 8, ran.output
    told = json.loads(ran.stdout)
    assert (told["resumes"], told["error"], told["late"]) == (None, "TRANSIENT_FAILURE", None)


def test_of_a_checkpoint_that_cannot_be_read_nothing_is_known(run, url, store, tmp_path):
    (tmp_path / "positions.db").write_text("no database, but a text " * 100)
    ran = run("token", "check", url, f"sqlite://{tmp_path}/positions.db/orders", "--json")
    assert ran.exit_code > 2, ran.output
    told = json.loads(ran.stdout)
    assert told["resumes"] is None
    assert told["error"] in ran.stderr


def test_of_a_group_that_nobody_answers_for_nothing_is_known(run, url, store, tmp_path, monkeypatch):
    with api.connect(url) as client:
        [first, *_] = client.plan_partitions(api.ChangeFeedRequest("main/orders", api.Beginning()))
    where = f"sqlite://{tmp_path}/positions.db"
    plan = {"part-0": {"id": first[0], "start": first[1], "parents": []}}
    api.open_checkpoint_store(where).save("plan", json.dumps(plan), None)

    def silent(session, request, wait_seconds=0.0):
        raise THROTTLED

    monkeypatch.setattr(ConnectedFeed, "read", silent)
    ran = run("token", "check", url, f"{where}/plan", "--json")
    assert ran.exit_code == 8, ran.output
    told = json.loads(ran.stdout)
    assert told["lag_seconds"] is None
    part = told["positions"]["part-0"]
    assert (part["resumes"], part["error"]) == (None, "THROTTLED")


def test_a_token_that_is_refused_cannot_be_resumed(run, url, store, token):
    store.create_collection("orders", recreate=True)
    ran = run("token", "check", url, token, "--json")
    assert ran.exit_code == 3
    told = json.loads(ran.stdout)
    assert (told["resumes"], told["reason"]) == (False, "recreated")


def test_one_partition_without_an_answer_leaves_it_open(run, url, token, failing):
    failing(THROTTLED, THROTTLED)
    ran = run("token", "check", url, token)
    assert ran.exit_code == 8, ran.output
    assert "resumes    not known" in ran.stdout
    failing(THROTTLED)
    told = json.loads(run("token", "check", url, token, "--json", "--max-lag", "15m").stdout)
    assert (told["resumes"], told["error"]) == (None, "THROTTLED")


def test_one_partition_that_has_expired_decides_it(run, url, token, failing):
    failing(THROTTLED, EXPIRED)
    ran = run("token", "check", url, token, "--json")
    assert ran.exit_code == 6, ran.output
    told = json.loads(ran.stdout)
    assert (told["resumes"], told["error"]) == (False, "CHECKPOINT_EXPIRED")


def test_whether_changes_wait_is_not_known_of_an_expired_token(run, url, store, token):
    store.trim("orders", max_count=0)
    told = json.loads(run("token", "check", url, token, "--json").stdout)
    assert (told["resumes"], told["changes_waiting"], told["idle"]) == (False, None, None)


@pytest.mark.parametrize("late", [[], ["--max-lag", "15m"]])
def test_the_exporter_takes_no_silence_for_a_position_that_is_kept(
    run, url, token, failing, monkeypatch, late
):
    failing(THROTTLED)
    ran = run("token", "check", url, token, "--json", *late)
    facts = json.loads(ran.stdout)
    monkeypatch.setattr(Exporter, "_check", lambda exporter, position: (ran.exit_code, facts))
    exporter = Exporter([Position("orders", ())], 60, 1, 60)
    exporter.run(once=True)
    found = {
        sample.name.removeprefix("multiclouddb_position_"): sample.value
        for family in text_string_to_metric_families(exporter.metrics())
        for sample in family.samples
    }
    assert (found["known"], found["exit_code"]) == (0, 8)
    assert found.keys().isdisjoint(("late", "expired"))
