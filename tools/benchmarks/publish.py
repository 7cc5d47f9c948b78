"""Writes the files of the documentation: the record, its pages and its charts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chart import draw
from benchmarks.page import front_text, page_text
from benchmarks.record import ROOT, Record

__all__ = ["write_docs"]


def write_docs(record: Record, root: Path = ROOT) -> None:
    """Write the record, its page and its charts."""
    record.write(root)
    record = Record.read(root) or record  # with the figures as they are stored, rounded to four digits
    page = root / "reference" / "benchmarks-all.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(page_text(record), encoding="utf-8")
    page.with_name("benchmarks.md").write_text(front_text(record), encoding="utf-8")
    for theme in ("light", "dark"):
        draw(record, theme, root / "assets" / f"benchmarks-{theme}.png")
