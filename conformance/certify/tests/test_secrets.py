"""Tests that a password in a URL is in no argument, no `repr` and no file that others can read."""

import json
import stat
from pathlib import Path

import pytest

from multiclouddb_api import MulticloudDbError
from multiclouddb_certify.certification import Run
from multiclouddb_certify.drills import State
from multiclouddb_certify.order import Order
from multiclouddb_certify.private_files import open_private, write_private
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


def modes(folder):
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in (folder, *folder.rglob("*"))}


class TestDrill:
    def test_a_url_that_may_contain_a_secret_is_not_stored(self, run, tmp_path):
        for url in (URL, "mongodb://db.invalid/?tlsCertificateKeyFilePassword=correct-horse"):
            with pytest.raises(MulticloudDbError, match="env:NAME") as refused:
                State("election", url, "abc")
            assert SECRET not in f"{refused.value!r} {refused.value.message}"
            ran = run(
                "certify", "start", url, "--drill", "election", "--account", "x", "--yes", "--folder", "drill"
            )
            assert ran.exit_code == 3, ran.output
            assert "put the URL into a variable and write env:NAME" in ran.stderr
            assert SECRET not in ran.output
        assert not Path("drill").exists()

    @pytest.mark.parametrize("kind", ["variable", "file", "file and variable"])
    def test_its_folder_holds_the_name_of_the_secret_alone(self, dynamo, run, monkeypatch, kind):
        """As for a URL with a password, which only MongoDB has."""
        source = named(dynamo.url, kind, monkeypatch)
        words = ("--drill", "rollover", "--account", "local", "--yes", "--folder", "drill")
        ran = run("certify", "start", source, *words)
        assert ran.exit_code == 0, ran.output
        assert modes(Path("drill")) == {"drill": 0o700, "drill.json": 0o600}
        state = json.loads(Path("drill/drill.json").read_text())
        assert dynamo.url not in Path("drill/drill.json").read_text()
        (marker,) = (Path("cache/multiclouddb/certify")).glob("*.drill")
        assert stat.S_IMODE(marker.stat().st_mode) == 0o600
        assert "waits" in run("certify", "resume", "drill").stdout
        given_up = run("certify", "clean", source, "--run", f"mcdb-certify-{state['run']}")
        assert given_up.exit_code == 0, given_up.output
        assert modes(Path("drill")) == {"drill": 0o700, "drill.json": 0o600}
        assert "given up" in Path("drill/drill.json").read_text()

    def test_a_variable_that_is_gone_is_named(self, dynamo, run, monkeypatch):
        source = named(dynamo.url, "variable", monkeypatch)
        run(
            "certify",
            "start",
            source,
            "--drill",
            "rollover",
            "--account",
            "local",
            "--yes",
            "--folder",
            "drill",
        )
        url = dynamo.url
        monkeypatch.delenv("PLACE")
        ran = run("certify", "resume", "drill")
        assert (ran.exit_code, "needs the variable PLACE, which is not set" in ran.stderr) == (3, True)
        monkeypatch.setenv("PLACE", url)
        (left,) = (each for each in dynamo.names() if each != "orders")
        dynamo.native.delete_table(TableName=left)


def named(url, kind, monkeypatch):
    """Return what stands for a URL in a command."""
    monkeypatch.setenv("PLACE", url)
    if kind == "variable":
        return "env:PLACE"
    value = f'"{url}"' if kind == "file" else '{ env = "PLACE" }'
    Path("place.toml").write_text(f'provider = "dynamo"\n[connection]\nurl = {value}\n')
    return "place.toml"


@pytest.mark.parametrize("kind", ["variable", "file", "file and variable"])
def test_a_run_takes_what_connect_takes_and_leaves_private_files(dynamo, run, monkeypatch, kind):
    words = ("--account", "local", "--yes", "--report", "report")
    ran = run("certify", named(dynamo.url, kind, monkeypatch), *words, "--only", "TestNow and empty")
    assert ran.exit_code == 0, ran.output
    assert modes(Path("report")) == {"report": 0o700, "report.json": 0o600, "report.md": 0o600}
    assert run("certify", "clean", named(dynamo.url, kind, monkeypatch)).stdout == "nothing was left\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            'provider = "dynamo"\nmax_concurrency = 3\n[connection]\nurl = "dynamo://eu-west-1"\n',
            "other settings",
        ),
        ('provider = "dynamo"\n[connection]\nregion = "eu-west-1"\n', "other settings"),
        ('provider = "mongo"\n[connection]\nurl = "dynamo://eu-west-1"\n', "other settings"),
        ('provider = "dynamo"\n[connection]\nurl = { env = "NOWHERE" }\n', "NOWHERE"),
        ("[", "cannot be read as TOML"),
        (None, "cannot be read as TOML"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(run, text, said):
    if text is not None:
        Path("place.toml").write_text(text)
    ran = run("certify", "clean", "place.toml")
    assert (ran.exit_code, said in ran.stderr) == (3, True), ran.output


def test_a_variable_that_is_not_set_is_named(run):
    ran = run("certify", "clean", "env:NOWHERE")
    assert (ran.exit_code, "NOWHERE, which is not set" in ran.stderr) == (3, True)


@pytest.mark.parametrize("before", [None, 0o644])
def test_a_file_is_private_also_if_it_was_not(tmp_path, before):
    file = tmp_path / "file"
    if before is not None:
        file.touch(before)
    write_private(file, "text")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("text", 0o600)
    file.chmod(0o644)
    with open_private(file) as opened:
        opened.write(b"more")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("more", 0o600)
    assert not file.with_name("file.new").exists()
