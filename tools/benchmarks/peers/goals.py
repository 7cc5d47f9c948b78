"""Defines the goals of the comparison: bounds on our figures, or on their ratios to a peer's figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from benchmarks.peers.report import Outcome
from benchmarks.result import figure

__all__ = ["GOALS", "Goal"]


@attrs.frozen
class Goal:
    """A bound on one of our figures, or on its ratio to a peer's figure.

    Attributes:
        title: The name of the bounded figure, for people.
        ours: The name of our line in the tables.
        field: The name of the field of `Outcome` that contains the figure.
        bound: The bound.
        at_most: True if less is better.
        other: The peer with which the goal compares: our figure is divided by the peer's. Empty if the
            goal does not compare our figure with a peer.
        reason: Why the goal is missed, or lower than it was.
    """

    title: str
    ours: str
    field: str
    bound: float
    at_most: bool = False
    other: str = ""
    reason: str = ""

    def achieved(self, outcomes: Mapping[str, Outcome]) -> float | None:
        """Return the figure to compare with the bound; None if a required peer was not measured."""
        names = [self.ours, *([self.other] if self.other else [])]
        figures: list[float] = [getattr(outcomes[name], self.field) for name in names if name in outcomes]
        if len(figures) < len(names) or not all(figures):
            return None
        return figures[0] / figures[1] if self.other else figures[0]

    def line(self, outcomes: Mapping[str, Outcome]) -> tuple[str, str, str, str]:
        """Return the title, the figure, the goal and the verdict as text."""
        achieved, sign = self.achieved(outcomes), "≤" if self.at_most else "≥"
        unit = "x" if self.other else ""
        goal = f"{sign} {figure(self.bound, unit)}"
        if achieved is None:
            return self.title, "-", goal, "not measured"
        met = achieved <= self.bound if self.at_most else achieved >= self.bound
        return self.title, figure(achieved, unit), goal, "met" if met else "missed"


GOALS: Final = (
    Goal(
        "MongoDB, events a second compared with Debezium",
        "mongo-ours",
        "rate",
        3,
        other="debezium",
        reason=(
            "On two cores, which the server shares, the library reads as fast as PyMongo's loop. Three times "
            "Debezium's rate would be faster than this loop."
        ),
    ),
    Goal(
        "MongoDB, CPU compared with Debezium",
        "mongo-ours",
        "cpu",
        0.2,
        at_most=True,
        other="debezium",
        reason="The ratio was 0.19 on four cores. The next line says where the CPU time goes.",
    ),
    Goal(
        "MongoDB, CPU compared with PyMongo's loop",
        "mongo-ours",
        "cpu",
        1.15,
        at_most=True,
        other="pymongo",
        reason=(
            "Measured by hand, in µs of CPU for a change: decoding takes 13, as in the loop. Reading the raw "
            "answer in the thread that reads ahead takes 5.5. The objects of event and key, times and order "
            "keys take 6, and the iterator takes 3."
        ),
    ),
    Goal("MongoDB, Arrow compared with events", "mongo-arrow", "rate", 1, other="mongo-ours"),
    Goal(
        "MongoDB, stream of Spark, events a second",
        "spark",
        "rate",
        15_000,
        reason=(
            "The goal was 25,000. A change takes 92 µs of CPU in Python and the JVM together, so two cores "
            "allow 21,700 at most, and the server shares them."
        ),
    ),
    Goal("DynamoDB, events a second compared with JavaScript", "dynamo-ours", "rate", 2, other="aws-sdk-js"),
    Goal(
        "DynamoDB, peak memory compared with boto3",
        "dynamo-ours",
        "mebibytes",
        1.3,
        at_most=True,
        other="boto3",
    ),
    Goal(
        "Delay of one change of a hundred, `wait_seconds=1`, compared with PyMongo",
        "latency-waiting",
        "p99_ms",
        1,
        at_most=True,
        other="latency-pymongo",
        reason=(
            "The median is 1.2 ms above PyMongo's, because a change passes from the thread that reads to the "
            "caller. One change of a hundred waits longer where all programs share two cores; on four, the "
            "ratio was 0.53."
        ),
    ),
    Goal("Delay of one change of a hundred, by default, ms", "latency-default", "p99_ms", 20, at_most=True),
)
