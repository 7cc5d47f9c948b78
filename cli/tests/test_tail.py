"""Tests `multiclouddb tail`."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from multiclouddb_api import FileCheckpointStore, event_from_json
from multiclouddb_conformance.command_line import apart_from_silence

from .terminals import PROGRAM

LINE = re.compile(r'\d{4}-\d\d-\d\dT[\d:.]+Z  CREATE  id="(o-\d)"  \{"total":\d\}')


def keys(text):
    return [event_from_json(line).key.components["id"] for line in text.splitlines()]


def follow(*words):
    return subprocess.Popen(
        [*PROGRAM, "tail", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


class TestLines:
    def test_a_person_reads_time_type_key_and_document(self, run, url, store):
        result = run("tail", url, "main/orders", "--from", "beginning", "--until-idle")
        assert result.exit_code == 0
        assert len({LINE.fullmatch(line)[1] for line in result.stdout.splitlines()}) == 10

    def test_a_program_reads_one_event_a_line(self, run, url, store):
        result = run("tail", url, "orders", "--from", "beginning", "--until-idle", "--exact")
        assert sorted(keys(result.stdout)) == [f"o-{number}" for number in range(10)]

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

    def test_documents_are_left_out_on_request(self, run, url, store):
        result = run("tail", url, "orders", "--from", "beginning", "--until-idle", "--state", "omit")
        assert "total" not in result.stdout

    def test_now_has_nothing_old(self, run, url, store):
        assert run("tail", url, "orders", "--until-idle").stdout == ""

    def test_a_time_is_a_start(self, run, url, store):
        first = run("tail", url, "orders", "--from", "beginning", "--until-idle", "--exact").stdout
        events = sorted((event_from_json(line) for line in first.splitlines()), key=lambda e: e.timestamp)
        late = events[7].timestamp.isoformat()
        result = run("tail", url, "orders", "--from", late, "--until-idle", "--exact")
        assert len(result.stdout.splitlines()) == 3


class TestScope:
    def test_one_key(self, run, url, store):
        result = run(
            "tail",
            url,
            "orders",
            "--from",
            "beginning",
            "--until-idle",
            "--exact",
            "--scope",
            'key:{"id":"o-4"}',
        )
        assert keys(result.stdout) == ["o-4"]

    def test_one_partition_as_the_list_names_it(self, run, url, store):
        listed = json.loads(run("partitions", url, "orders", "--json").stdout)
        found = []
        for item in listed:
            scope = f"partition:{item['partition_id']}"
            words = ("--from", "beginning", "--until-idle", "--exact", "--scope", scope)
            found += keys(run("tail", url, "orders", *words).stdout)
        assert sorted(found) == [f"o-{number}" for number in range(10)]


class TestCheckpoint:
    def test_a_second_run_goes_on_behind_the_first(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--from", "beginning", "--checkpoint", tmp_path / "pos", "--exact")
        first = keys(run(*words, "--max-events", 4).stdout)
        second = keys(run(*words, "--until-idle").stdout)
        assert len(first) == 4
        assert sorted(first + second) == [f"o-{number}" for number in range(10)]
        store.put("orders", "o-new", {})
        assert keys(run(*words, "--until-idle").stdout) == ["o-new"]

    def test_an_application_s_checkpoint_is_continued(self, run, url, store, tmp_path):
        words = ("tail", url, "orders", "--until-idle", "--exact")
        run(*words, "--checkpoint", tmp_path / "worker.checkpoint.json")
        store.put("orders", "o-new", {})
        kept = FileCheckpointStore(tmp_path)
        before = kept.load("worker")
        assert keys(run(*words, "--from", f"@{tmp_path}/worker.checkpoint.json").stdout) == ["o-new"]
        assert kept.load("worker") == before
        run(*words, "--checkpoint", tmp_path / "worker.checkpoint.json")
        assert kept.load("worker").token != before.token

    def test_a_token_in_a_file_is_a_start(self, run, url, store, tmp_path):
        run("tail", url, "orders", "--until-idle", "--checkpoint", tmp_path / "pos")
        token = json.loads((tmp_path / "pos").read_text())["token"]
        (tmp_path / "token").write_text(token + "\n")
        store.put("orders", "o-new", {})
        words = ("tail", url, "orders", "--from", f"@{tmp_path}/token", "--until-idle", "--exact")
        assert keys(run(*words).stdout) == ["o-new"]

    def test_a_reader_that_goes_gets_what_it_missed_the_next_time(self, shell, url, store):
        line = f"multiclouddb tail {url} orders --from beginning --checkpoint pos --exact --until-idle"
        head = shell(f"{line} --max-events 3 | head -1")
        assert (head.returncode, head.stderr) == (0, "")
        rest = shell(line)
        seen = set(keys(head.stdout)) | set(keys(rest.stdout))
        # Events that are in the pipe count as printed, so the checkpoint is after these events.
        assert len(seen) >= 8

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

    def test_by_kill_loses_nothing(self, run, url, store, tmp_path):
        for number in range(300):
            store.put("orders", f"big-{number}", {"text": "x" * 1000})
        words = (url, "orders", "--from", "beginning", "--checkpoint", tmp_path / "pos", "--exact")
        with follow(*words) as process:
            first = process.stdout.readline()
            process.kill()
            whole, _, _ = (first + process.stdout.read()).rpartition("\n")
        second = keys(run("tail", *words, "--until-idle").stdout)
        assert len({*keys(whole), *second}) == 310

    def test_without_a_checkpoint_is_as_quiet(self, url, store):
        with follow(url, "orders", "--from", "beginning", "--max-events", 11) as process:
            assert process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert (process.wait(timeout=60), apart_from_silence(process.stderr.read())) == (130, "")


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
