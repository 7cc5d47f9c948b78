"""Tests `multiclouddb tail`."""

import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

import multiclouddb_api as api
from multiclouddb_cli.screen import ProgressLine, snapshot_line
from multiclouddb_cli.session import Contact, Interrupt
from multiclouddb_cli.tail import StatusLine
from testing.command_line import apart_from_silence

from .terminals import follow

ORDERS = ("ordered", "interleaved", "auto")
LINE = re.compile(r'\d{4}-\d\d-\d\dT[\d:.]+Z  CREATE  id="(o-\d)"  \{"total":\d\}')


def keys(text):
    return [api.event_from_json(line).key.components["id"] for line in text.splitlines()]


class TestLines:
    def test_a_person_reads_time_type_key_and_document(self, run, url, store):
        result = run("tail", url, "main/orders", "--from", "beginning", "--until-idle")
        assert result.exit_code == 0
        assert len({LINE.fullmatch(line)[1] for line in result.stdout.splitlines()}) == 10

    def test_deletes_and_long_documents_stay_on_one_line(self, run, url, store):
        store.put("orders", "o-1", {"text": "long\x1b[31m \x9b" * 100})
        store.delete("orders", "o-1")
        result = run("tail", url, "orders", "--from", "beginning", "--until-idle")
        _, updated, deleted = (line for line in result.stdout.splitlines() if 'id="o-1"' in line)
        assert "  UPDATE  " in updated
        assert len(updated) <= 160
        assert "\x1b" not in result.stdout
        assert "\x9b" not in result.stdout
        assert deleted.endswith('DELETE  id="o-1"')


def test_the_last_events_count_for_the_most_events(url, store):
    with follow(url, "orders", "--last", 2, "--max-events", 4, "--exact") as process:
        first = [process.stdout.readline() for _ in range(2)]
        for number in range(5):
            store.put("orders", f"new-{number}", {})
        found = keys("".join(first) + process.stdout.read())
        assert process.wait(timeout=60) == 0
    assert found[:2] == ["o-8", "o-9"]
    assert len(found) == 4


def test_the_error_of_a_partition_shows_no_secret(run, url, store, monkeypatch):
    read = Contact.read_changes

    def troubled(contact, request, options):
        page = read(contact, request, options)
        errors = {"p0": "nobody at mongodb://me:a-hidden-key@host/"}
        return attrs.evolve(page, diagnostics=attrs.evolve(page.diagnostics, partition_errors=errors))

    monkeypatch.setattr(Contact, "read_changes", troubled)
    told = run("tail", url, "orders", "--from", "beginning", "--until-idle").stderr
    assert told.startswith("warning: p0: nobody at mongodb://")
    assert "hidden" not in told


class TestCheckpoint:
    def test_an_application_s_checkpoint_is_continued(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--until-idle", "--exact")
        run(*words, "--checkpoint", tmp_path / "worker.checkpoint.json")
        store.put("orders", "o-new", {})
        kept = api.FileCheckpointStore(tmp_path)
        before = kept.load("worker")
        assert keys(run(*words, "--from", f"@{tmp_path}/worker.checkpoint.json").stdout) == ["o-new"]
        assert kept.load("worker") == before
        run(*words, "--checkpoint", tmp_path / "worker.checkpoint.json")
        assert kept.load("worker").token != before.token

    def test_a_reader_that_goes_gets_what_it_missed_the_next_time(self, shell, url, store):
        line = f"multiclouddb tail {url} orders --from beginning --checkpoint pos --exact --until-idle"
        head = shell(f"{line} --max-events 3 | head -1")
        assert (head.returncode, head.stderr) == (0, "")
        rest = shell(line)
        seen = set(keys(head.stdout)) | set(keys(rest.stdout))
        # Events that are in the pipe count as printed, so the checkpoint is after these events.
        assert len(seen) >= 8

    def test_most_of_some_events_leaves_the_rest_for_the_next_time(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--until-idle", "--exact", "--from", "beginning", "--type", "create")
        words = (*words, "--checkpoint", tmp_path / "pos", "--max-events", 3)
        found = [keys(run(*words).stdout) for _ in range(4)]
        assert [len(part) for part in found] == [3, 3, 3, 1]
        assert len({key for part in found for key in part}) == 10

    def test_one_that_cannot_be_written_is_refused_before_anything_is_read(self, run, tmp_path):
        nowhere = Path("/proc/self/orders.checkpoint")  # not even root can write there
        result = run("tail", f"embedded://{tmp_path}/none.db", "orders", "--checkpoint", nowhere)
        assert result.exit_code == 2
        assert "--checkpoint" in result.stderr
        assert str(nowhere) in result.stderr

    def test_a_start_beside_one_is_ignored_aloud(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--until-idle", "--checkpoint", tmp_path / "pos")
        assert run(*words, "--from", "beginning").stderr == ""
        assert run(*words).stderr == ""
        again = run(*words, "--from", "beginning")
        assert (again.stdout, again.exit_code) == ("", 0)
        assert "--from" in again.stderr
        assert str(tmp_path / "pos") in again.stderr

    def test_a_damaged_one_is_refused(self, run, url, store, tmp_path):
        (tmp_path / "pos").write_text("{}")
        result = run("tail", url, "orders", "--until-idle", "--checkpoint", tmp_path / "pos")
        assert result.exit_code == 3
        assert "is not a checkpoint" in result.stderr


class TestInterrupt:
    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_leaves_a_checkpoint_that_misses_nothing(self, run, url, store, tmp_path, number, code):
        words = (url, "orders", "--from", "beginning", "--checkpoint", tmp_path / "pos", "--exact")
        with follow(*words) as process:
            first = [process.stdout.readline() for _ in range(10)]
            store.put("orders", "o-a", {})
            first.append(process.stdout.readline())
            process.send_signal(number)
            began = time.monotonic()
            out, err = process.stdout.read(), process.stderr.read()
            assert (process.wait(timeout=60), apart_from_silence(err)) == (code, "")
            assert time.monotonic() - began < 30
        store.put("orders", "o-b", {})
        second = keys(run("tail", *words, "--until-idle").stdout)
        assert len(set(keys("".join(first) + out))) == 11
        # When the signal came, the page with "o-a" may have been printed without its position being saved.
        assert second in (["o-b"], ["o-a", "o-b"])

    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_of_a_full_pipe_loses_nothing(self, run, url, store, tmp_path, monkeypatch, unbuffered):
        monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
        for number in range(300):
            store.put("orders", f"big-{number}", {"text": "x" * 1000})
        words = (url, "orders", "--from", "beginning", "--checkpoint", tmp_path / "pos", "--exact")
        with follow(*words) as process:
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            first += process.stdout.read()
            assert (process.wait(timeout=60), apart_from_silence(process.stderr.read())) == (130, "")
        second = keys(run("tail", *words, "--until-idle").stdout)
        # The command ended after the page that it was printing, so nothing is printed twice.
        assert len(keys(first)) + len(second) == len({*keys(first), *second}) == 310


class TestPipe:
    def test_a_follower_notices_that_its_reader_has_gone(self, shell, url, store):
        began = time.monotonic()
        result = shell(f"multiclouddb tail {url} orders --from beginning | head -1")
        assert (result.returncode, apart_from_silence(result.stderr)) == (0, "")
        assert LINE.fullmatch(result.stdout.strip())
        assert time.monotonic() - began < 30

    def test_a_full_disk_is_told_and_nothing_is_taken_for_printed(self, shell, url, store, tmp_path):
        line = f"multiclouddb tail {url} orders --from beginning --until-idle --checkpoint pos > /dev/full"
        result = shell(line)
        assert result.returncode == 1
        assert result.stderr == "error: [OUTPUT] cannot be written: No space left on device\n"
        assert not (tmp_path / "pos").exists()

    def test_a_closed_output_is_no_trouble(self, shell, url, store):
        result = shell(f"multiclouddb tail {url} orders --from beginning --until-idle >&-")
        assert (result.returncode, result.stderr) == (0, "")

    def test_no_encoding_breaks_it(self, shell, url, store):
        store.put("orders", "snow", {"text": "☃"})
        line = f"multiclouddb tail {url} orders --from beginning --until-idle"
        result = shell(line, PYTHONIOENCODING="latin-1")
        assert result.returncode == 0
        assert "\\u2603" in result.stdout


class TestSnapshot:
    @pytest.mark.parametrize("start", ["snapshot", *map("snapshot:{}".format, ORDERS)])
    def test_every_row_is_printed_and_the_notices_are_on_stderr(self, run, url, store, start):
        store.delete("orders", "o-3")
        result = run("tail", url, "orders", "--from", start, "--until-idle", "--exact")
        assert result.exit_code == 0
        assert sorted(keys(result.stdout)) == [f"o-{number}" for number in range(10) if number != 3]
        assert all(api.event_from_json(line).backfilled for line in result.stdout.splitlines())
        assert "notice: SnapshotStarted: floor=" in result.stderr
        assert "notice: BackfillDone: " in result.stderr
        assert "segments" not in result.stderr  # progress is for a terminal

    def test_a_checkpoint_continues_it(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--from", "snapshot", "--exact", "--checkpoint", tmp_path / "pos")
        first = run(*words, "--max-events", 4).stdout
        store.put("orders", "new", {"total": 1})
        second = run(*words, "--until-idle").stdout
        assert sorted({*keys(first + second)}) == ["new", *(f"o-{number}" for number in range(10))]

    def test_line_has_segments_rows_rate_and_the_rest(self):
        progress = api.SnapshotProgress(api.SnapshotOrder.ORDERED, 4, 10, 1200, 3000)
        assert snapshot_line(progress, 600.0) == (
            "[########------------]  4/10 segments  1,200 rows  600 rows/s  about 3.0s left  ordered"
        )

        progress = api.SnapshotProgress(api.SnapshotOrder.INTERLEAVED, 4, None, 0, None)
        assert snapshot_line(progress, None) == "4/? segments  0 rows  interleaved"

    def test_a_terminal_has_one_line_that_is_renewed(self, monkeypatch):
        shown = []
        monkeypatch.setattr("typer.echo", lambda text, err, nl: shown.append((text, nl)))
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        times = iter([0.0, 1.0, 1.1, 2.0])
        bar = ProgressLine(snapshot_line, lambda: next(times))
        for rows in (0, 100, 110, 200):
            bar.show(api.SnapshotProgress(api.SnapshotOrder.ORDERED, 0, 2, rows, 400))
        bar.clear()
        bar.clear()
        assert [text.partition("segments")[2] for text, _ in shown] == [
            "  0 rows  ordered",
            "  100 rows  100 rows/s  about 3.0s left  ordered",
            "  200 rows  100 rows/s  about 2.0s left  ordered",
            "",
        ]
        assert not any(nl for _, nl in shown)


def test_each_read_asks_all_partitions_so_that_to_can_end_the_command():
    asked = []
    client = SimpleNamespace(read_changes=lambda request, options: asked.append(options))
    contact = Contact(lambda: client, Interrupt(), api.Observer(), waits=False)
    request = api.ChangeFeedRequest("orders", api.Now())
    contact.read_changes(request, api.OperationOptions(7, 3, ask_all=False))
    assert asked == [api.OperationOptions(7, 3, ask_all=True)]


class TestLog:
    """Where stderr is no terminal, a line comes after ten seconds, and then each minute."""

    TIMES = (0.0, 9.9, 10.0, 11.0, 69.9, 70.0, 129.0, 130.5)
    SAID = (10.0, 70.0, 130.5)

    @pytest.fixture
    def said(self, monkeypatch):
        found = []
        monkeypatch.setattr("typer.echo", lambda text, err, nl=True: found.append((text, err, nl)))
        monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
        return found

    def test_of_the_progress_of_a_scan(self, said):
        now = [0.0]
        bar = ProgressLine(snapshot_line, lambda: now[0])
        for now[0] in self.TIMES:
            bar.show(api.SnapshotProgress(api.SnapshotOrder.ORDERED, 0, 2, int(10 * now[0]), None))
            bar.clear()
        assert [(text.split("  ")[2], err, nl) for text, err, nl in said] == [
            (f"{10 * each:,.0f} rows", True, True) for each in self.SAID
        ]

    def test_of_a_feed(self, said):
        now = [0.0]
        status = StatusLine(lambda: now[0])
        for now[0] in self.TIMES:
            status.show(api.ChangeFeedPage((), "token", idle=True))
            status.clear()
        assert len(said) == len(self.SAID)
        assert all(text.startswith("idle  at ") and err and nl for text, err, nl in said)
