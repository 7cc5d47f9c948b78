"""Tests what `multiclouddb mirror --follow` tells others, and that it ends when it is told to."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from multiclouddb_api import (
    ErrorCategory,
    ErrorDetail,
    ErrorReason,
    MulticloudDbError,
    ResourceAddress,
)
from multiclouddb_cli import exits
from multiclouddb_cli.mirroring import _Outages
from multiclouddb_cli.watched import _HELP, Watched, WatchedTable, to_place
from multiclouddb_mirror import MirrorProgress


def free_port():
    with socket.socket() as made:
        made.bind(("localhost", 0))
        return made.getsockname()[1]


def asked(port, path):
    try:
        with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Following:
    """A mirror in a process of its own, whose messages to systemd are received."""

    def __init__(self, folder, *words, **environment):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "notify"))
        self.socket.settimeout(60)
        self.process = subprocess.Popen(
            [
                sys.executable, "-m", "multiclouddb_cli", "mirror", "--follow", "--json", *words,
            ],
            env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def told(self):
        """Return the next message to systemd."""
        return self.socket.recv(1000).decode()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        stdout, stderr = self.process.communicate(timeout=10)  # the promise
        return self.process.returncode, stdout, stderr

    def close(self):
        self.socket.close()
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def started(tmp_path):
    made = []

    def start(*words, **environment):
        made.append(Following(tmp_path, *words, **environment))
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def follow(started, tmp_path, url, store):
    table = [url, "main/orders", "--target", f"sqlite:{tmp_path}/table.db#orders"]
    return lambda *words, **environment: started(*table, *words, **environment)


@pytest.fixture
def follow_file(started, tmp_path, path):
    def start(*collections, words):
        entry = f'[[table]]\ncollection = "main/{{0}}"\ntarget = "sqlite:{tmp_path}/{{0}}.db#rows"\n'
        head = f'provider = "embedded"\n[connection]\npath = "{path}"\n'
        (tmp_path / "mirror.toml").write_text(head + "".join(map(entry.format, collections)))
        return started(str(tmp_path / "mirror.toml"), "--set-aside", str(tmp_path / "aside"), *words)

    return start


def test_others_see_that_it_turns_and_a_signal_ends_it_with_0(follow):
    port = free_port()
    following = follow("--listen", str(port), WATCHDOG_USEC="600000000")
    assert following.told() == "READY=1"
    assert asked(port, "/live")[0] == asked(port, "/ready")[0] == 200
    assert asked(port, "/other")[0] == 404
    sample = None
    while sample is None or sample.value < 10:  # the first page may have no rows
        assert following.process.poll() is None
        families = {each.name: each for each in text_string_to_metric_families(asked(port, "/metrics")[1])}
        [sample] = families["multiclouddb_mirror_events"].samples
    table = sample.labels.pop("table")
    assert (sample.value, sample.labels) == (10.0, {"collection": "main/orders"})
    assert table.startswith("sqlite:")
    assert table.endswith("table.db#orders")
    assert following.told() == "WATCHDOG=1"
    code, stdout, stderr = following.end()
    assert code == 0, stderr
    assert json.loads(stdout)["events"] == 10
    messages = [following.told()]
    while messages[-1] != "STOPPING=1":
        messages.append(following.told())


def test_without_the_watchdog_systemd_is_told_only_that_it_is_ready(follow):
    following = follow()
    assert following.told() == "READY=1"
    assert following.end()[0] == 0
    assert following.told() == "STOPPING=1"


def test_a_proof_is_made_while_it_follows_and_is_its_exit_code(follow):
    port = free_port()
    following = follow("--listen", f"localhost:{port}", "--prove-every", "1s")
    assert following.told() == "READY=1"
    while "multiclouddb_mirror_proofs_total" not in (text := asked(port, "/metrics")[1]):
        assert following.process.poll() is None
    families = {each.name: each for each in text_string_to_metric_families(text)}
    assert families["multiclouddb_mirror_proof_exit_code"].samples[0].value == 0
    code, stdout, stderr = following.end()
    assert code == 0, stderr
    assert json.loads(stdout)["proof"]["outcome"] == "equal"
    assert "proof: equal" in stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--listen", "9100"], "is for --follow"),
        (["--prove-every", "1h"], "is for --follow"),
        (["--follow", "--listen", "x"], "is not [HOST:]PORT"),
        (["--follow", "--listen", ":80"], "is not [HOST:]PORT"),
        (["--follow", "--prove-every", "soon"], "is not an age"),
    ],
)
def test_a_wrong_argument_is_named(run, url, store, tmp_path, words, told):
    ran = run("mirror", url, "main/orders", "--target", f"sqlite:{tmp_path}/t.db#orders", *words)
    assert ran.exit_code == exits.USAGE, ran.output
    assert told in ran.stderr


def test_it_listens_only_here_unless_it_is_told_to():
    assert to_place("9100") == ("localhost", 9100)
    assert to_place("0.0.0.0:9100") == ("0.0.0.0", 9100)


def test_an_outage_is_a_gauge_that_grows_until_it_ends():
    now = [1000.0]
    orders, bills = (WatchedTable({"collection": name}, clock=lambda: now[0]) for name in ("orders", "bills"))
    watched = Watched()
    watched.add(orders, bills)

    def outages():
        _, text = watched.answer("/metrics")
        families = {each.name: each for each in text_string_to_metric_families(text)}
        return [sample.value for sample in families["multiclouddb_mirror_outage_seconds"].samples]

    assert outages() == [0, 0]
    told = _Outages(
        lambda: [(ResourceAddress("main", "orders"), orders), (ResourceAddress(None, "bills"), bills)]
    )
    told.outage(ResourceAddress("main", "orders"), 5.0, "the table does not answer")
    now[0] += 40
    assert outages() == [45, 0]
    told.outage(ResourceAddress("main", "bills"), 1.0, "the table does not answer")
    told.outage_ended(ResourceAddress("main", "orders"), 50.0)
    assert outages() == [0, 1]
    # The tables of a database may share one reading.
    told.outage(ResourceAddress(database="main"), 7.0, "the database does not answer")
    assert outages() == [7, 1]
    told.outage_ended(ResourceAddress(database="main"), 8.0)
    assert outages() == [0, 1]


def test_the_page_of_the_metrics_has_each_of_them():
    page = (Path(__file__).parents[2] / "docs/reference/metrics.md").read_text(encoding="utf-8")
    section = page.partition("## Of a mirror")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([a-z_]+)`(?:,| \|)", section)) == set(_HELP)


def test_the_lag_grows_while_no_page_comes():
    now = [1000.0]
    watched, table = Watched(), WatchedTable({"collection": "orders"}, clock=lambda: now[0])
    watched.add(table)
    table.turned(MirrorProgress(3, 0, None, 2.0))

    def lag():
        return samples(watched)["multiclouddb_mirror_lag_seconds"]["orders"]

    assert lag() == 2
    now[0] += 40
    assert lag() == 42
    table.alive()  # a proof, which goes on merging
    assert lag() == 2
    table.turned(MirrorProgress(4, 0, None, 1.0))
    assert lag() == 1


def samples(watched):
    """Return the metrics by name and collection."""
    status, text = watched.answer("/metrics")
    assert status == 200
    return {
        sample.name: {each.labels["collection"]: each.value for each in family.samples}
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def failures(watched):
    """Return the labels of what has failed."""
    families = text_string_to_metric_families(watched.answer("/metrics")[1])
    return [
        sample.labels
        for family in families
        for sample in family.samples
        if family.name == "multiclouddb_mirror_failure"
    ]


def test_several_tables_are_told_apart_and_one_that_has_failed_stops_no_probe():
    now = [1000.0]
    watched = Watched()
    throttled = MulticloudDbError("wait", ErrorDetail(ErrorCategory.THROTTLED))
    expired = MulticloudDbError(
        "gone", ErrorDetail(ErrorCategory.CHECKPOINT_EXPIRED, reason=ErrorReason.AGED_OUT)
    )
    assert watched.answer("/ready")[0] == 503
    orders, bills = (
        WatchedTable({"collection": name}, lambda: 7, clock=lambda: now[0]) for name in ("orders", "bills")
    )
    watched.add(orders, bills)
    orders.turned(MirrorProgress(3, 0, None, 2.0))
    assert watched.answer("/ready")[0] == 503
    bills.failed(throttled, ends=False)
    assert watched.answer("/ready")[0] == 503
    bills.turned(MirrorProgress(5, 1, None, 1.0))
    assert watched.answer("/ready")[0] == 200
    found = samples(watched)
    assert found["multiclouddb_mirror_events_total"] == {"orders": 3, "bills": 5}
    assert found["multiclouddb_mirror_failed"] == {"orders": 0, "bills": 0}
    assert failures(watched) == []
    assert found["multiclouddb_mirror_set_aside"] == {"orders": 7, "bills": 7}
    now[0] += 400
    orders.turned(MirrorProgress(4, 0, None, 0.0))
    bills.failed(throttled, ends=False)  # and it is tried again
    now[0] += 400
    assert watched.answer("/live")[0] == 200
    assert failures(watched) == [{"collection": "bills", "category": "THROTTLED", "reason": ""}]
    found = samples(watched)
    assert found["multiclouddb_mirror_failed"] == {"orders": 0, "bills": 1}
    assert found["multiclouddb_mirror_lag_seconds"] == {"orders": 400, "bills": 801}
    bills.failed(expired, ends=True)
    assert failures(watched) == [
        {"collection": "bills", "category": "CHECKPOINT_EXPIRED", "reason": "aged_out"}
    ]
    now[0] += 700
    assert watched.answer("/live")[0] == 503  # because of orders
    orders.turned(MirrorProgress(5, 0, None, 0.0))
    assert watched.answer("/live")[0] == watched.answer("/ready")[0] == 200


def test_a_file_with_several_tables_is_watched_too(follow_file, store):
    port = free_port()
    following = follow_file("orders", "gone", words=["--listen", str(port)])
    assert following.told() == "READY=1"
    assert asked(port, "/live")[0] == asked(port, "/ready")[0] == 200
    found = {}
    while found.get("multiclouddb_mirror_events", {}).get("main/orders") != 10:
        assert following.process.poll() is None
        found = {
            each.name: {sample.labels["collection"]: sample.value for sample in each.samples}
            for each in text_string_to_metric_families(asked(port, "/metrics")[1])
        }
    assert found["multiclouddb_mirror_failed"] == {"main/orders": 0, "main/gone": 1}
    assert found["multiclouddb_mirror_set_aside"] == {"main/orders": 0, "main/gone": 0}
    code, stdout, stderr = following.end()
    assert code == 4, stderr
    assert "main/gone, sqlite:" in stderr
    assert re.search(r", which is not followed any more:\n\S+Z  error: \[NOT_FOUND\]", stderr)
    failed, ended = map(json.loads, stdout.splitlines())
    assert (failed["error"]["category"], ended["events"]) == ("NOT_FOUND", 10)
    assert failed["error"]["reason"] is None
