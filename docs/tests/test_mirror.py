"""Checks the cron lines of the nightly job: a good night prints nothing, every failure something."""

import re
import subprocess
import sys

import pytest

from multiclouddb_embedded import EmbeddedStore

from .page import Page

PAGE = Page("jobs/mirror-nightly.md")
[SCRIPT] = re.findall(r'^```sh title="night.sh"\n(.*?)^```$', PAGE.text, re.DOTALL | re.MULTILINE)
# The page's collection is on MongoDB; here it is in an embedded store.
CONFIG = 'provider = "embedded"\n[connection]\npath = { env = "SHOP" }\n'


@pytest.fixture
def folder(tmp_path):
    """Make the folder of the job, with a store of one document."""
    made = tmp_path / "mirror"
    made.mkdir()
    (made / "night.sh").write_text(SCRIPT, encoding="utf-8")
    (made / "mirror.py").write_text(PAGE.programs["mirror.py"], encoding="utf-8")
    (made / "mongo.toml").write_text(CONFIG, encoding="utf-8")
    (made / "password").write_text(f"export SHOP={tmp_path}/shop.db\n", encoding="utf-8")
    (made / ".venv").symlink_to(sys.prefix)
    with EmbeddedStore(tmp_path / "shop.db") as store:
        store.create_collection("orders")
        store.put("orders", "o-1", {"total": 1})
    return made


def lines_of(folder):
    """Return the commands of the crontab: the job, the alarm and the proof, with paths in this folder."""
    [position] = re.findall(r"^ +position=(.*)$", PAGE.text, re.MULTILINE)
    lines = re.findall(r"^ +\d+ [\d*]+ \* \* [\d*] +(sh .*)$", PAGE.text, re.MULTILINE)
    paths = {"$position": position, "shop/orders": "main/orders", "/srv/mirror": str(folder)}
    for old, new in {**paths, "/data/": f"{folder.parent}/data/"}.items():
        lines = [line.replace(old, new) for line in lines]
    return lines


def by_cron(line):
    """Run a line as cron does; return its exit code and what would be mailed."""
    ended = subprocess.run(["/bin/sh", "-c", line], cwd="/", env={}, capture_output=True, text=True)
    return ended.returncode, ended.stdout + ended.stderr


def test_good_nights_print_nothing_and_an_alarm_is_told(folder):
    job, alarm, proof = lines_of(folder)
    for line in (job, alarm, proof):
        assert by_cron(line) == (0, "")
    with EmbeddedStore(folder.parent / "shop.db") as store:
        store.put("orders", "o-2", {"total": 2})
    code, told = by_cron(alarm.replace("26h", "0s"))
    assert code == 15, told
    assert "ended with 15" in told
    assert "error: [LATE]" in told


@pytest.mark.parametrize("missing", ["mongo.toml", "mirror.py", "password", ".venv", "night.sh", "."])
def test_whatever_is_missing_is_told(folder, missing):
    job, *_ = lines_of(folder)
    gone = folder / missing
    gone.rename(folder.parent / "gone")
    code, told = by_cron(job)
    assert code != 0
    assert told.strip()


def test_a_killed_job_is_told(folder):
    (folder / "mirror.py").write_text("import os\nos.kill(os.getpid(), 9)\n", encoding="utf-8")
    job, *_ = lines_of(folder)
    code, told = by_cron(job)
    assert code == 137
    assert "ended with 137" in told
