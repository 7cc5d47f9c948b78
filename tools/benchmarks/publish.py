"""Writes the files of the documentation: the record, its pages and its charts."""

from __future__ import annotations

from pathlib import Path

from benchmarks.chart import draw
from benchmarks.page import front_text
from benchmarks.record import ROOT, Record

__all__ = ["write_docs"]


def write_docs(record: Record, root: Path = ROOT) -> None:
    """Write the record, the first page and its charts."""
    record.write(root)
    record = Record.read(root) or record  # with the figures as they are stored, rounded to four digits
    page = root / "reference" / "benchmarks.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(front_text(record), encoding="utf-8")
    for theme in ("light", "dark"):
        draw(record, theme, root / "assets" / f"benchmarks-{theme}.png")
