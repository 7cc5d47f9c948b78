"""Tests that a password in a URL is in no argument, no `repr` and no file that others can read."""

import re
import stat

from typer.testing import CliRunner

from multiclouddb_certify.certification import Run
from multiclouddb_certify.command import app
from multiclouddb_certify.drills import DRILL_FILE, State
from multiclouddb_certify.order import Order
from multiclouddb_certify.run import _child

SECRET = "correct-horse"
URL = f"mongodb://me:{SECRET}@db.invalid/?tls=true"


def test_the_child_gets_its_order_over_stdin():
    order = Order(URL, Run.new().name, 1.0, None)
    with _child(order) as child:
        words = " ".join(child._process.args)
    assert "multiclouddb_certify" in words
    assert SECRET not in words
    assert SECRET not in repr(order)


def test_a_drill_is_stored_for_its_user_alone(tmp_path):
    state = State("election", URL, "abc")
    for _ in range(2):
        state.save(tmp_path)
    assert SECRET not in repr(state)
    assert stat.S_IMODE((tmp_path / DRILL_FILE).stat().st_mode) == 0o600
    assert not (tmp_path / f"{DRILL_FILE}.new").exists()
    assert SECRET in (tmp_path / DRILL_FILE).read_text()


def test_the_url_may_stand_in_a_variable(monkeypatch):
    seen = []
    monkeypatch.setattr("multiclouddb_certify.run.clean", lambda url, name: (seen.append(url), ([], {}))[1])
    monkeypatch.setenv("PLACE", URL)
    assert CliRunner().invoke(app, ["clean", "env:PLACE"]).exit_code == 0
    assert seen == [URL]
    refused = CliRunner().invoke(app, ["clean", "env:NOWHERE"])
    assert refused.exit_code == 2
    assert "NOWHERE is not set" in re.sub(r"\s+", " ", refused.output)
