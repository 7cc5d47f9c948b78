"""Tests the command line without running any mutant."""

import pytest
from typer.testing import CliRunner

from mutation import command
from mutation.equivalents import Equivalent
from mutation.running import KILLED, SURVIVED, Outcome
from mutation.tracing import Traces


@pytest.fixture
def run(monkeypatch):
    """Run the command with the given outcomes; return the exit code and the output."""

    def go(*arguments, status=KILLED):
        monkeypatch.setattr(command, "_traced", lambda *_: Traces({}, {}, ()))
        monkeypatch.setattr(
            command, "_tried", lambda _, __, mutants, *___: {each.name: Outcome(status) for each in mutants}
        )
        ran = CliRunner().invoke(command.app, arguments)
        return ran.exit_code, ran.output

    return go


class TestExit:
    def test_is_good_when_enough_are_killed(self, run):
        code, output = run()
        assert code == 0
        assert "100.0%" in output

    def test_is_bad_when_too_few_are_killed(self, run):
        assert run(status=SURVIVED)[0] == 1

    def test_is_bad_when_too_few_ran(self, run):
        code, output = run(status="not run")
        assert code == 1
        assert "fewer than 150 ran" in output

    def test_is_bad_when_an_entry_is_stale(self, run, monkeypatch):
        gone = Equivalent("gone.py", "f", "a", "b", "it was the same as before")
        monkeypatch.setattr(command, "read_equivalents", lambda _: [gone])
        code, output = run()
        assert code == 1
        assert "stale" in output

    def test_is_bad_when_what_is_called_equivalent_is_killed(self, run):
        assert run("--equivalents", status=SURVIVED)[0] == 0
        code, output = run("--equivalents")
        assert code == 1
        assert "and killed" in output


class TestSettings:
    @pytest.mark.parametrize(
        ("file", "inside", "outside"),
        [
            ("spanner.toml", "providers/spanner/multiclouddb_spanner/reader.py", "multiclouddb_spi"),
            ("lineage.toml", "multiclouddb_spi/continuation/uncovered.py", "multiclouddb_spi/reading"),
        ],
    )
    def test_another_file_plants_elsewhere(self, run, file, inside, outside):
        code, output = run("--settings", file, "--list")
        assert code == 0
        assert inside in output
        assert outside not in output

    def test_what_is_listed_as_equivalent_elsewhere_is_not_stale(self, run):
        code, output = run("--settings", "spanner.toml")
        assert code == 0
        assert "stale" not in output


class TestList:
    def test_is_the_same_each_time(self, run):
        first, second = run("--list", "--number", "20"), run("--list", "--number", "20")
        assert first == second
        assert first[1].count("\n  + ") == 20
