"""Tests that the documentation is made from the recorded run."""

import socket

import pytest
from typer.testing import CliRunner

from benchmarks import command
from benchmarks.alone import measured
from benchmarks.measure import failure
from benchmarks.page import page_text, rows_text, write_docs
from benchmarks.record import ROOT, Record, setting
from benchmarks.result import Result
from benchmarks.row import Done, load_rows
from multiclouddb_api.errors import DOCS_URL

AGAIN = "run: python -m benchmarks --redraw, or --record"


def result(name, value=1.0, *, ok=True, at_most=False, **changes):
    return Result(name, "events/s", value, 2.0, value / 2, 0.4, at_most, ok, **changes)


def record(*results):
    return Record({result.name: result for result in results})


class TestMerge:
    def test_rows_are_exchanged_by_name_and_keep_the_order_of_the_table(self):
        kept = record(result("a", 1.0), result("c", 3.0))
        merged = kept.merged([result("c", 30.0), result("b", 20.0)], ["a", "b", "c"])
        assert [(row.name, row.value) for row in merged.results.values()] == [
            ("a", 1.0),
            ("b", 20.0),
            ("c", 30.0),
        ]

    def test_a_row_that_broke_does_not_replace_a_figure(self, make_row):
        broken = failure(make_row(None, name="a"), OSError("gone"))
        assert record(result("a", 1.0)).merged([broken], ["a", "b"]).results["a"].value == 1.0

    def test_rows_that_are_no_more_leave(self):
        kept = record(result("a"), result("old"))
        assert list(kept.merged([result("a")], ["a", "b"]).results) == ["a"]

    def test_each_row_keeps_its_machine(self):
        kept = record(result("a", setting="here"), result("b", setting="here"))
        merged = kept.merged([result("a", setting="there")], ["a", "b"])
        assert [row.setting for row in merged.results.values()] == ["there", "here"]

    def test_a_record_comes_back_as_it_was_written(self, tmp_path):
        kept = record(result("a", notes={"small": 1.5}, reason="why", ok=False, recorded="2026-01-31"))
        kept.write(tmp_path)
        assert Record.read(tmp_path) == kept

    def test_there_may_be_none(self, tmp_path):
        assert Record.read(tmp_path) is None

    def test_the_setting_names_machine_and_versions_and_no_host(self):
        assert "cores" in setting()
        assert "pyspark" in setting()
        assert socket.gethostname() not in setting()


class TestDocumentation:
    def test_the_page_is_what_the_generator_makes_of_the_record(self):
        kept = Record.read()
        assert (ROOT / "reference" / "benchmarks.md").read_text(encoding="utf-8") == page_text(kept), AGAIN

    def test_the_record_has_rows_of_the_table_in_its_order(self):
        kept = Record.read().results
        assert list(kept) == [name for name in load_rows() if name in kept], AGAIN

    def test_a_whole_run_puts_every_row_on_both_pages(self):
        rows = load_rows()
        kept = Record().merged([result(name) for name in reversed(rows)], rows)
        text, described = page_text(kept), rows_text(kept)
        link = f"{DOCS_URL}maintainers/benchmarks/#"
        assert [row.name for row in rows.values() if f"[{row.question}]({link}{row.name})" not in text] == []
        assert [row.name for row in rows.values() if f"\n## {row.name}\n" not in described] == []
        assert "Not recorded yet" not in text

    def test_the_page_names_each_row_that_is_not_recorded(self):
        rows = load_rows()
        *kept, other, last = rows
        text = page_text(record(*map(result, kept)))
        assert f"\nNot recorded yet: `{other}` and `{last}`.\n" in text
        assert f"#{last})" not in text

    def test_a_miss_is_on_the_page_and_its_reason_on_that_of_the_rows(self):
        kept = record(result("embedded-events", 0.2, ok=False, reason="Mapping takes its time."))
        assert "| ≥ 0.4 x: **missed** |" in page_text(kept)
        assert "Why the goal is missed: Mapping takes its time." in rows_text(kept)

    def test_the_page_of_the_rows_says_what_is_done_by_hand(self):
        text = rows_text(record(result("embedded-events")))
        assert "By hand: A loop over the same SQLite file" in text

    def test_less_is_better_for_every_row_whose_unit_is_no_rate(self):
        """The page says that a ratio above 1 is faster for rates, and takes more for everything else."""
        assert [row.name for row in load_rows().values() if row.at_most == row.unit.endswith("s/s")] == []

    def test_the_page_names_the_machine_of_each_row(self):
        here = {"setting": "2 cores", "recorded": "2026-01-31", "load": 0.2}
        there = {"setting": "4 cores", "recorded": "2026-02-01", "load": 0.4}
        rows = (result("memory", **there), result("spark", **here), result("start", **here))
        text = page_text(record(*rows))
        assert "\nMachine: 2 cores. Recorded on 2026-01-31. The load was 0.2 to 0.4.\n" in text
        assert "\nMachine of `memory`: 4 cores. Recorded on 2026-02-01.\n" in text

    def test_everything_is_written_and_a_run_writes_what_it_measured(self, rows, tmp_path, monkeypatch):
        monkeypatch.setattr(command, "write_docs", lambda kept: write_docs(kept, tmp_path))
        monkeypatch.setattr(
            Record, "read", classmethod(lambda cls, root=tmp_path, read=Record.read: read(root))
        )
        assert CliRunner().invoke(command.app, ["--record"]).exit_code == 0
        kept = Record.read(tmp_path)
        assert list(kept.results) == ["memory"]
        assert kept.results["memory"].setting == setting()
        text = (tmp_path / "reference" / "benchmarks.md").read_text(encoding="utf-8")
        assert text == page_text(kept)

    @pytest.fixture
    def rows(self, make_row, monkeypatch):
        """Provide a table of one row, whose name is that of a real one."""
        made = {"memory": make_row(lambda: Done(10, value=2.0), name="memory")}
        monkeypatch.setattr(command, "load_rows", lambda: made)
        monkeypatch.setattr(command, "_alone", measured)

    def test_redrawing_measures_nothing(self, tmp_path, monkeypatch):
        kept = record(result("memory"))
        monkeypatch.setattr(Record, "read", lambda *_: kept)
        monkeypatch.setattr(command, "write_docs", lambda kept: write_docs(kept, tmp_path))
        monkeypatch.delattr(command, "run_all")
        assert CliRunner().invoke(command.app, ["--redraw"]).exit_code == 0
        text = (tmp_path / "reference" / "benchmarks.md").read_text(encoding="utf-8")
        assert text == page_text(kept)
