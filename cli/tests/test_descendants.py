"""Tests `--scope descendants:ID`, and tokens of that scope."""

import json
import re

import pytest

from multiclouddb_api import Beginning, ChangeFeedRequest, PhysicalPartition, ResourceAddress, connect

ORDERS = ResourceAddress("main", "orders")


@pytest.fixture
def root(run, url, store):
    """Return the public id of a partition that is split and merged later."""
    listed = json.loads(run("partitions", url, "main/orders", "--json").stdout)
    return {item["native_id"]: item["partition_id"] for item in listed}["p0"]


@pytest.fixture
def grown(root, store):
    """Write documents to the descendants of `root`."""
    store.split("orders", "p0")
    for number in range(10, 40):
        store.put("orders", f"o-{number}", {})
    return root


def events(text):
    return [json.loads(line)["event_id"] for line in text.splitlines()]


def test_tail_reads_on_in_the_children(run, url, grown):
    words = ("tail", url, "main/orders", "--from", "beginning", "--until-idle", "--exact", "--scope")
    alone = events(run(*words, f"partition:{grown}").stdout)
    whole = events(run(*words, f"descendants:{grown}").stdout)
    assert set(alone) < set(whole)
    assert len(set(whole)) == len(whole)


def test_inspect_and_check_understand_the_token(run, url, grown):
    scope = PhysicalPartition(grown, with_descendants=True)
    with connect(url) as client:
        token = client.read_changes(ChangeFeedRequest(ORDERS, Beginning(), scope)).continuation_token
    shown = run("token", "inspect", token).stdout
    assert re.search(r"^scope +descendants:p0$", shown, re.MULTILINE)
    assert len(re.findall(r"^p\d +active", shown, re.MULTILINE)) == 2
    checked = run("token", "check", url, token)
    assert checked.exit_code == 0
    assert re.search(r"^resumes +yes$", checked.stdout, re.MULTILINE)
    assert re.search(r"^covers +unknown$", checked.stdout, re.MULTILINE)
    assert len(re.findall(r"^p\d +active .*(nothing new|has changes)$", checked.stdout, re.MULTILINE)) == 2


def test_token_of_the_other_form_is_refused(run, url, grown, tmp_path):
    scope = PhysicalPartition(grown, with_descendants=True)
    with connect(url) as client:
        token = client.read_changes(ChangeFeedRequest(ORDERS, Beginning(), scope)).continuation_token
    (tmp_path / "token").write_text(token)
    words = ("tail", url, "main/orders", "--from", f"@{tmp_path}/token", "--until-idle", "--scope")
    assert run(*words, f"descendants:{grown}").exit_code == 0
    result = run(*words, f"partition:{grown}")
    assert result.exit_code == 3
    assert "with its descendants" in result.stderr
