"""Reports the findings of the loss oracle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import attrs

__all__ = ["LossReport", "RunReport"]

_SHOWN: Final = 12


@attrs.frozen
class RunReport:
    """The result of one run of the script with its kills. Findings are texts; no finding means success.

    Attributes:
        plan: The plan to which the run belongs.
        name: The place at which the consumer was killed.
        written: The number of changes that the script wrote.
        delivered: The number of events that the application processed, including redelivered events.
        duplicates: The number of processed events that were redeliveries of an earlier event.
        kills: The number of times that the consumer was killed.
        lost: Written changes that were never delivered.
        early: Delivered changes that were made before the start of the feed.
        unknown: Delivered events whose changes were never written.
        disorder: Changes of one partition or one key that were delivered in the wrong order.
        lineage: Partitions that were read too early, because an ancestor was not yet read to its
            end.
        identity: Changes that have several event ids, and event ids that belong to several changes.
        watermark: Watermarks that went back, and watermarks that were later than the time of a
            following event.
        hasty: Idle pages that were returned while more events existed.
        error: The reason why the run ended early, or None.
    """

    plan: str
    name: str
    written: int = 0
    delivered: int = 0
    duplicates: int = 0
    kills: int = 0
    lost: tuple[str, ...] = ()
    early: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    disorder: tuple[str, ...] = ()
    lineage: tuple[str, ...] = ()
    identity: tuple[str, ...] = ()
    watermark: tuple[str, ...] = ()
    hasty: tuple[str, ...] = ()
    error: str | None = None

    def broken_promises(self) -> list[str]:
        """Return all findings except losses, each with its kind."""
        kinds = ("early", "unknown", "disorder", "lineage", "identity", "watermark", "hasty")
        return [f"{kind}: {text}" for kind in kinds for text in getattr(self, kind)]

    def findings(self) -> list[str]:
        """Return all findings, the worst first."""
        failed = [] if self.error is None else [f"failed: {self.error}"]
        return [*self.lost, *failed, *self.broken_promises()]


@attrs.frozen
class LossReport:
    """The results of all runs of one oracle; `print` shows a summary.

    Attributes:
        steps: The number of steps in the script.
        runs: The runs, in order.
    """

    steps: int
    runs: tuple[RunReport, ...]

    @property
    def lost(self) -> int:
        """The lost changes of all runs."""
        return sum(len(run.lost) for run in self.runs)

    @property
    def duplicates(self) -> int:
        """The number of redelivered events in all runs; redelivery is allowed."""
        return sum(run.duplicates for run in self.runs)

    @property
    def kills(self) -> int:
        """The number of times that a consumer was killed."""
        return sum(run.kills for run in self.runs)

    def assert_nothing_lost(self) -> None:
        """Raise an error if a change was lost or a run did not finish.

        Raises:
            AssertionError: The error names the first loss and the place where the consumer was killed.
        """
        for run in self.runs:
            if run.lost or run.error is not None:
                raise AssertionError(self._told(run, run.findings()[0]))

    def assert_all_kept(self) -> None:
        """Raise an error if the report contains any finding.

        A finding may also be about order, lineage, identity, watermarks or idle pages.

        Raises:
            AssertionError: The error names the first finding and the place where the consumer was killed.
        """
        self.assert_nothing_lost()
        for run in self.runs:
            for finding in run.findings():
                raise AssertionError(self._told(run, finding))

    def _told(self, run: RunReport, finding: str) -> str:
        return f"{finding}\n    in the run {run.plan}, {run.name}\n{self}"

    def __str__(self) -> str:
        plans = dict.fromkeys(run.plan for run in self.runs)
        rows: list[tuple[str, ...]] = [("run", "runs", "kills", "delivered", "twice", "lost", "other")]
        rows += [self._row(plan, [run for run in self.runs if run.plan == plan]) for plan in plans]
        rows.append(self._row("together", self.runs))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [
            "  ".join(
                [
                    row[0].ljust(widths[0]),
                    *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
                ]
            )
            for row in rows
        ]
        lines.append("verdict: " + self._verdict())
        findings = [f"  {run.name}: {finding}" for run in self.runs for finding in run.findings()]
        if len(findings) > _SHOWN:
            findings = [*findings[:_SHOWN], f"  … and {len(findings) - _SHOWN} more"]
        return "\n".join([*lines, *findings])

    def _row(self, name: str, runs: Iterable[RunReport]) -> tuple[str, ...]:
        chosen = list(runs)
        numbers = (
            len(chosen),
            sum(run.kills for run in chosen),
            sum(run.delivered for run in chosen),
            sum(run.duplicates for run in chosen),
            sum(len(run.lost) for run in chosen),
            sum(len(run.broken_promises()) + (run.error is not None) for run in chosen),
        )
        return (name, *map(str, numbers))

    def _verdict(self) -> str:
        if self.lost:
            return f"{self.lost} lost"
        if any(run.findings() for run in self.runs):
            return "nothing lost, but other promises are broken"
        return "nothing lost, every promise kept"
