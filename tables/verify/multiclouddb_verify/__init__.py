"""Proves that a table equals its source while both change, and repairs it."""

from __future__ import annotations

from multiclouddb_tables.delta import DeltaTarget
from multiclouddb_verify.comparison import DifferenceKind
from multiclouddb_verify.estimate import Estimate, estimate
from multiclouddb_verify.passes import Standing, verify_every
from multiclouddb_verify.position import spark_position, stored_position
from multiclouddb_verify.report import Cost, Counts, Difference, Outcome, Progress, Report
from multiclouddb_verify.sides import Position, Transform
from multiclouddb_verify.verification import ComparisonSettings, VerifySettings, verify

__all__ = [
    "ComparisonSettings",
    "Cost",
    "Counts",
    "DeltaTarget",
    "Difference",
    "DifferenceKind",
    "Estimate",
    "Outcome",
    "Position",
    "Progress",
    "Report",
    "Standing",
    "Transform",
    "VerifySettings",
    "estimate",
    "spark_position",
    "stored_position",
    "verify",
    "verify_every",
]
