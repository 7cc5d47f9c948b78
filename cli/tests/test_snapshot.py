"""Tests `multiclouddb tail --from snapshot`: every row, then every change, and the progress of the scan."""

import pytest

from multiclouddb_api import SnapshotOrder, SnapshotProgress, event_from_json
from multiclouddb_cli.screen import ScanProgress, progress_line

ORDERS = ["snapshot", "snapshot:ordered", "snapshot:interleaved", "snapshot:auto"]


@pytest.mark.parametrize("start", ORDERS)
def test_every_row_is_printed_and_the_notices_are_on_stderr(run, url, store, start):
    store.delete("orders", "o-3")
    result = run("tail", url, "orders", "--from", start, "--until-idle", "--exact")
    assert result.exit_code == 0
    events = [event_from_json(line) for line in result.stdout.splitlines()]
    assert sorted(event.key.components["id"] for event in events) == [
        f"o-{number}" for number in range(10) if number != 3
    ]
    assert all(event.backfilled for event in events)
    assert "notice: SnapshotStarted: floor=" in result.stderr
    assert "notice: BackfillDone: " in result.stderr
    assert "snapshot: [--------------------]  0/1 segments  0 rows" in result.stderr


def test_a_checkpoint_continues_it(run, url, store, tmp_path):
    words = ["tail", url, "orders", "--from", "snapshot", "--exact", "--checkpoint", tmp_path / "position"]
    first = run(*words, "--max-events", 4)
    store.put("orders", "new", {"total": 1})
    second = run(*words, "--until-idle")
    keys = [
        event_from_json(line).key.components["id"] for line in (first.stdout + second.stdout).splitlines()
    ]
    assert sorted(set(keys)) == sorted([*(f"o-{number}" for number in range(10)), "new"])


def test_other_commands_refuse_it(run, url, store):
    result = run("top", url, "orders", "--from", "snapshot")
    assert result.exit_code == 2
    assert "only be used with tail" in result.output


class TestLine:
    def test_it_has_segments_rows_rate_and_the_rest(self):
        progress = SnapshotProgress(SnapshotOrder.ORDERED, 4, 10, 1200, 3000)
        assert progress_line(progress, 600.0) == (
            "[########------------]  4/10 segments  1,200 rows  600 rows/s  about 3.0s left  ordered"
        )

    def test_what_is_not_known_is_left_out(self):
        progress = SnapshotProgress(SnapshotOrder.INTERLEAVED, 4, None, 0, None)
        assert progress_line(progress, None) == "4/? segments  0 rows  interleaved"


class TestBar:
    @pytest.fixture
    def shown(self, monkeypatch):
        found = []
        monkeypatch.setattr("typer.echo", lambda text, err, nl: found.append((text, nl)))
        return found

    def test_a_terminal_has_one_line_that_is_renewed(self, monkeypatch, shown):
        monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
        times = iter([0.0, 1.0, 1.1, 2.0])
        bar = ScanProgress(lambda: next(times))
        for rows in (0, 100, 110, 200):
            bar.show(SnapshotProgress(SnapshotOrder.ORDERED, 0, 2, rows, 400))
        bar.clear()
        bar.clear()
        assert [text.partition("segments")[2] for text, _ in shown] == [
            "  0 rows  ordered",
            "  100 rows  100 rows/s  about 3.0s left  ordered",
            "  200 rows  100 rows/s  about 2.0s left  ordered",
            "",
        ]
        assert not any(nl for _, nl in shown)

    def test_nothing_is_shown_without_a_scan(self, shown):
        ScanProgress().show(None)
        assert shown == []
