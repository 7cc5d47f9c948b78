"""Tests the command line and its output."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks import command
from benchmarks.alone import measured
from benchmarks.command import app, choose, run_all
from benchmarks.row import Done, load_rows

FIELDS = {"name", "unit", "value", "baseline", "ratio", "goal", "ok", "reason"}


@pytest.fixture
def rows(make_row, monkeypatch):
    """Provide a table of three rows; the second row fails."""

    def broken():
        raise OSError("the server is gone")

    made = {
        "good": make_row(lambda: Done(10, value=2.0), lambda: Done(10, value=1.0), "good"),
        "broken": make_row(broken, name="broken"),
        "slow": make_row(lambda: Done(10, value=1.0), lambda: Done(10, value=4.0), "slow"),
    }
    monkeypatch.setattr(command, "load_rows", lambda: made)
    # Another process would not know these rows.
    monkeypatch.setattr(command, "_alone", measured)
    return made


def invoke(*arguments):
    return CliRunner().invoke(app, arguments)


class TestOnly:
    def test_an_unknown_name_lists_the_names_in_one_line(self, run_benchmarks):
        ran = run_benchmarks("--only", "embeded")
        assert ran.returncode == 2
        (line,) = ran.stderr.splitlines()
        assert line == f"error: there is no row 'embeded'; the rows are {', '.join(load_rows())}"
        assert ran.stdout == ""

    @pytest.mark.parametrize("only", [["memory", "spark"], ["memory,spark"], ["memory spark"]])
    def test_several_come_in_the_order_of_the_table(self, only):
        assert [row.name for row in choose(only)] == ["spark", "memory"]

    @pytest.mark.parametrize("only", [None, []])
    def test_all_by_default(self, only):
        assert [row.name for row in choose(only)] == list(load_rows())


class TestBreaking:
    def test_a_row_that_breaks_leaves_the_others_and_the_exit_code_tells(self, rows):
        ran = invoke()
        assert ran.exit_code == 1
        assert "broken failed: OSError: the server is gone" in ran.stdout
        assert [result.verdict for result in run_all(list(rows.values()))] == ["met", "failed", "missed"]

    def test_a_missed_goal_blocks_nothing(self, rows):
        ran = invoke("--only", "slow")
        assert ran.exit_code == 0
        assert "slow missed: 0.25 x, and the goal is ≥ 1 x" in ran.stdout


class TestOutput:
    def test_a_row_of_json_has_its_fields(self, rows):
        good, broken, slow = json.loads(invoke("--json").stdout)
        assert good.keys() >= FIELDS
        assert (good["value"], good["baseline"], good["ratio"], good["ok"]) == (2.0, 1.0, 2.0, True)
        assert (broken["value"], broken["failed"], broken["ok"]) == (None, True, False)
        assert (slow["ratio"], slow["ok"]) == (0.25, False)

    def test_a_pipe_gets_plain_lines(self, run_benchmarks):
        ran = run_benchmarks("--scale", "0.01", "--only", "page-1000")
        assert ran.returncode == 0, ran.stderr
        assert "\x1b" not in ran.stdout + ran.stderr
        (line,) = [line for line in ran.stdout.splitlines() if line.startswith("  page-1000")]
        assert "What does the engine cost a large page?" in line
        assert line.split()[-1] in {"met", "missed"}

    def test_a_terminal_gets_colors(self, rows, monkeypatch):
        monkeypatch.setenv("FORCE_COLOR", "1")
        assert "\x1b[32mmet" in invoke("--only", "good").stdout

    @pytest.mark.parametrize(("load", "warned"), [(0.0, False), (1000.0, True)])
    def test_a_busy_machine_is_told(self, rows, monkeypatch, load, warned):
        monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
        assert ("warning: the machine is busy" in invoke("--only", "good").stderr) == warned

    def test_a_small_run_is_not_recorded(self, rows):
        ran = invoke("--scale", "0.5", "--record")
        assert ran.exit_code == 2
        assert ran.stderr.startswith("error: --scale measures too little")

    @pytest.mark.parametrize(("wish", "scale"), [([], 1.0), (["--scale", "0.25"], 0.25)])
    def test_a_run_does_the_wanted_part_of_the_work(self, monkeypatch, wish, scale):
        asked = []
        monkeypatch.setattr("benchmarks.command.run_all", lambda rows, scale: asked.append(scale) or [])
        invoke("--only", "memory", *wish)
        assert asked == [scale]


class TestProcess:
    def test_a_row_without_its_server_fails_with_the_reason_and_the_others_go_on(self, monkeypatch, tmp_path):
        """Nothing is in the cache, and pip finds no package."""
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        broken, other = run_all(choose(["mongo-events", "start"]), 0.002)
        assert (broken.verdict, "pip download" in broken.reason) == ("failed", True)
        assert other.verdict != "failed"

    def test_a_row_whose_process_dies_has_failed_with_its_last_words(self, make_row):
        """No process knows this row, so it ends before it has a result."""
        (result,) = run_all([make_row(None, name="unknown")])
        assert result.verdict == "failed"
        assert result.reason == "RuntimeError: its process ended with 1: KeyError: 'unknown'"
