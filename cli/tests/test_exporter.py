"""Tests `multiclouddb exporter`: the lag of many positions, of which one that hangs holds up no other."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from multiclouddb_api import Beginning, ChangeFeedRequest, MulticloudDbError, connect
from multiclouddb_cli.exporter import Exporter, read_positions
from multiclouddb_conformance.waiting import wait_until
from multiclouddb_embedded import EmbeddedStore

from .test_watched import free_port


def samples(text):
    return {
        (sample.name.removeprefix("multiclouddb_position_"), sample.labels["position"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name != "multiclouddb_position_failed"
    }


def failures(text):
    return [
        sample.labels
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name == "multiclouddb_position_failed"
    ]


@pytest.fixture
def file(store, url, path, tmp_path):
    """Write a file with positions: one on time, one late, one expired, and one that hangs."""
    with connect(url) as client:
        first = client.read_changes(ChangeFeedRequest("orders", Beginning(), max_page_size=1))
        changes = client.iterate_changes(ChangeFeedRequest("orders", Beginning()), until_idle=True)
        assert len(list(changes)) == 10
    (tmp_path / "late").write_text(first.continuation_token)
    (tmp_path / "on-time").write_text(changes.continuation_token)
    with EmbeddedStore(tmp_path / "old.db", durable=False) as old:
        old.create_collection("orders", retention=timedelta(hours=2))
        old.put("orders", "o-1", {})
        old.put("orders", "o-2", {})
        with connect(f"embedded://{old.path}") as client:
            token = client.read_changes(
                ChangeFeedRequest("orders", Beginning(), max_page_size=1)
            ).continuation_token
        (tmp_path / "expired").write_text(token)
        old.put("orders", "o-3", {})
        old.trim("orders", max_count=0)
    os.mkfifo(tmp_path / "hangs")
    lines = list[str]()
    for name in ("hangs", "late", "on-time", "expired"):
        where = f"embedded://{tmp_path}/old.db" if name == "expired" else url
        lines += ["[[position]]", f'name = "{name}"', f'url = "{where}"', f'position = "@{tmp_path / name}"']
        lines += ['max_lag = "15m"', ""]
    (tmp_path / "positions.toml").write_text("\n".join(lines))
    return tmp_path / "positions.toml"


def test_each_position_has_what_is_known_of_it(file, run):
    done = run("exporter", file, "--once", "--limit", "12", "--at-once", "2")
    assert done.exit_code == 0, done.output
    found = samples(done.stdout)
    told = ("known", "late", "expired", "exit_code")
    assert {key: value for key, value in found.items() if key[0] in told} == {
        ("known", "on-time"): 1, ("late", "on-time"): 0, ("expired", "on-time"): 0,
        ("exit_code", "on-time"): 0,
        ("known", "late"): 1, ("late", "late"): 1, ("expired", "late"): 0, ("exit_code", "late"): 15,
        ("known", "expired"): 0, ("expired", "expired"): 1, ("exit_code", "expired"): 6,
        ("known", "hangs"): 0, ("exit_code", "hangs"): 16,
    }  # fmt: skip
    assert found["lag_seconds", "late"] > 900
    assert ("expired", "hangs") not in found  # a check without an answer proves nothing
    assert ("lag_seconds", "hangs") not in found
    assert ("lag_seconds", "expired") not in found
    assert failures(done.stdout) == [
        {"position": "expired", "category": "CHECKPOINT_EXPIRED", "reason": "trimmed"}
    ]
    assert "hangs: no answer in 12 seconds" in done.stderr
    assert "late: error: [LATE]" in done.stderr


def test_it_serves_while_one_hangs_and_ends_at_sigterm(file):
    port = free_port()
    words = ["exporter", str(file), "--listen", str(port), "--at-once", "2", "--every", "1s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "multiclouddb_cli", *words], stderr=subprocess.PIPE, text=True
    )
    try:

        def asked(path="/metrics"):
            try:
                with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as answer:
                    return answer.read().decode()
            except OSError:
                return ""

        wait_until(lambda: samples(asked()).get(("checks_total", "on-time"), 0) > 1, seconds=60)
        found = samples(asked())
        of_hangs = {key[0]: value for key, value in found.items() if key[1] == "hangs"}
        assert of_hangs == {"known": 0, "checks_total": 0}
        assert asked("/ready") == ""
        assert asked("/live") == "live\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


def test_the_words_of_a_check_are_not_on_its_command_line(file, monkeypatch):
    started = []

    class Starting(subprocess.Popen):
        def __init__(self, words, **named):
            started.append(words)
            super().__init__(words, **named)

    monkeypatch.setattr(subprocess, "Popen", Starting)
    positions = [each for each in read_positions(file) if each.name == "on-time"]
    Exporter(positions, 60, 1, 60).run(once=True)
    assert len(started) == 1
    assert not re.search("embedded|on-time", str(started))
    assert "embedded" not in repr(positions)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no position"),
        ("every = 1\n[[position]]", "'every' is not known"),
        ("[[position]]\nname = 'a'", r"position 1 \(a\), url: is missing"),
        ("[[position]]\nname = 'a'\nurl = 'u'\nposition = 'p'\ntoken = 't'", "'token' is not known"),
        ("[[position]]\nname = 'a'\nurl = {env = 'NOT_SET_AT_ALL'}", "NOT_SET_AT_ALL"),
        (2 * "[[position]]\nname = 'a'\nurl = 'u'\nposition = 'p'\n", "has the name 'a' twice"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, problem):
    (tmp_path / "positions.toml").write_text(text)
    with pytest.raises(MulticloudDbError, match=problem):
        read_positions(tmp_path / "positions.toml")
