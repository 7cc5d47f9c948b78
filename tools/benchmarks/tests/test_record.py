"""Tests that the documentation is made from the recorded run."""

import json
import struct

import attrs
import pytest
from typer.testing import CliRunner

from benchmarks import command
from benchmarks.chart import draw
from benchmarks.measure import failure
from benchmarks.page import front_text, page_text
from benchmarks.publish import write_docs
from benchmarks.record import ROOT, Record, setting
from benchmarks.result import Result
from benchmarks.row import load_rows

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
        import socket

        assert "cores" in setting()
        assert "pyspark" in setting()
        assert socket.gethostname() not in setting()


class TestDocumentation:
    def test_the_page_is_what_the_generator_makes_of_the_record(self):
        kept = Record.read()
        assert kept is not None
        assert (ROOT / "reference" / "benchmarks.md").read_text(encoding="utf-8") == front_text(kept), AGAIN

    def test_every_row_is_recorded(self):
        kept = Record.read()
        assert list(kept.results) == list(load_rows()), AGAIN
        rows = json.loads((ROOT / "assets" / "benchmarks.json").read_text(encoding="utf-8"))["rows"]
        assert all(
            row.keys() >= {"name", "unit", "value", "baseline", "ratio", "goal", "ok", "reason"}
            for row in rows
        )

    def test_a_miss_is_on_the_page_with_its_reason(self):
        missed = result("embedded-events", 0.2, ok=False, reason="Mapping takes its time.")
        text = page_text(record(missed))
        assert "| **missed** |" in text
        assert "- **Embedded store, events**: Mapping takes its time." in text

    def test_the_page_says_what_the_baseline_is(self):
        text = page_text(record(result("embedded-events")))
        assert "Baseline: A loop over the same SQLite file" in text
        assert "def bare_loop(path: Path) -> Done:" in text

    def test_the_first_page_names_each_row_in_which_less_is_better(self):
        """Its text says that a ratio above 1 means faster, which holds for rates alone."""
        kept, rows = Record.read(), load_rows()
        text = front_text(kept)
        shown = [row for row in rows.values() if f"| {row.title} |" in text]
        times = [row.title.partition(",")[0] for row in shown if row.at_most]
        assert times == ["Start"]
        assert [name for name in times if f"*{name}* is a time" not in text] == []
        assert all(kept.results[row.name].unit.endswith("s/s") for row in shown if not row.at_most)

    def test_the_page_names_the_machine_of_each_row(self):
        here = {"setting": "2 cores", "recorded": "2026-01-31"}
        there = {"setting": "4 cores", "recorded": "2026-02-01"}
        rows = (result("memory", **there), result("token", **here), result("start", **here))
        text = page_text(record(*rows))
        assert "\nMachine: 2 cores. Recorded on 2026-01-31.\n" in text
        assert "\nMachine of `memory`: 4 cores. Recorded on 2026-02-01.\n" in text

    def test_everything_is_written(self, tmp_path):
        rows = load_rows().items()
        write_docs(
            record(*(attrs.evolve(result(name, 1234567.8), at_most=row.at_most) for name, row in rows)),
            tmp_path,
        )
        kept = Record.read(tmp_path)
        assert list(kept.results) == list(load_rows())
        assert (tmp_path / "reference" / "benchmarks.md").read_text(encoding="utf-8") == front_text(kept)
        light, dark = (
            (tmp_path / "assets" / f"benchmarks-{name}.png").read_bytes() for name in ("light", "dark")
        )
        assert light != dark
        for image in (light, dark):
            assert image.startswith(b"\x89PNG")
            width, height = struct.unpack(">II", image[16:24])
            assert width >= 1000
            assert height >= 500

    def test_redrawing_measures_nothing(self, tmp_path, monkeypatch):
        kept = record(result("token"))
        monkeypatch.setattr(Record, "read", lambda *_: kept)
        monkeypatch.setattr(command, "write_docs", lambda kept: write_docs(kept, tmp_path))
        monkeypatch.delattr(command, "run_all")
        assert CliRunner().invoke(command.app, ["--redraw"]).exit_code == 0
        text = (tmp_path / "reference" / "benchmarks.md").read_text(encoding="utf-8")
        assert text == front_text(kept)

    @pytest.mark.parametrize("theme", ["light", "dark"])
    def test_the_charts_are_there(self, theme):
        assert (ROOT / "assets" / f"benchmarks-{theme}.png").read_bytes().startswith(b"\x89PNG"), AGAIN

    def test_a_chart_has_a_bar_for_each_row_that_has_a_figure(self, tmp_path, monkeypatch):
        from matplotlib.axes import Axes

        drawn = []
        monkeypatch.setattr(Axes, "barh", lambda self, places, widths, **_: drawn.extend(widths))
        rows = record(
            result("embedded-events", 1.6), result("memory", 0.4, at_most=True), result("gone", 1.0)
        )
        draw(rows, "light", tmp_path / "chart.png")
        assert drawn == pytest.approx([1.0, 1.0])  # both rows are twice as good as their goals
