"""Keeps a table equal to a collection: the first copy, then every change, from one position to the next."""

from __future__ import annotations

from multiclouddb_mirror.destinations import Destination, destination_of
from multiclouddb_mirror.estimating import MirrorEstimate, estimate_mirror
from multiclouddb_mirror.mirroring import Mirror, mirror
from multiclouddb_mirror.proving import ProvedMirror
from multiclouddb_mirror.report import MirrorProgress, MirrorReport
from multiclouddb_mirror.setting_aside import RetryReport, retry_set_aside
from multiclouddb_mirror.settings import MirrorSettings
from multiclouddb_mirror.several import MirrorFile, MirrorJob, Mirrors, Outcome
from multiclouddb_mirror.status import MirrorStatus, mirror_status

__all__ = [
    "Destination",
    "Mirror",
    "MirrorEstimate",
    "MirrorFile",
    "MirrorJob",
    "MirrorProgress",
    "MirrorReport",
    "MirrorSettings",
    "MirrorStatus",
    "Mirrors",
    "Outcome",
    "ProvedMirror",
    "RetryReport",
    "destination_of",
    "estimate_mirror",
    "mirror",
    "mirror_status",
    "retry_set_aside",
]
