"""Keeps a table equal to a collection: the first copy, then every change, from one position to the next."""

from __future__ import annotations

from multiclouddb_mirror.destinations import Destination, destination_of
from multiclouddb_mirror.mirroring import Mirror, MirrorProgress, MirrorReport, MirrorSettings, mirror

__all__ = [
    "Destination",
    "Mirror",
    "MirrorProgress",
    "MirrorReport",
    "MirrorSettings",
    "destination_of",
    "mirror",
]
