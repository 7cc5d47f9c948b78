"""Proves that a table equals its source while both change, and repairs it."""

from __future__ import annotations

from multiclouddb_verify.comparison import Kind
from multiclouddb_verify.delta import DeltaTarget
from multiclouddb_verify.estimate import Estimate, estimate
from multiclouddb_verify.own_columns import ColumnType
from multiclouddb_verify.position import spark_position, stored_position
from multiclouddb_verify.report import Cost, Counts, Difference, Outcome, Progress, Report
from multiclouddb_verify.sides import Position, Transform
from multiclouddb_verify.target import Fix, Part, SupportsParts, SupportsRecord, Target
from multiclouddb_verify.verification import ComparisonSettings, VerifySettings, verify

__all__ = [
    "ColumnType",
    "ComparisonSettings",
    "Cost",
    "Counts",
    "DeltaTarget",
    "Difference",
    "Estimate",
    "Fix",
    "Kind",
    "Outcome",
    "Part",
    "Position",
    "Progress",
    "Report",
    "SupportsParts",
    "SupportsRecord",
    "Target",
    "Transform",
    "VerifySettings",
    "estimate",
    "spark_position",
    "stored_position",
    "verify",
]
