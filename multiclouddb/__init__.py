"""One Python API for the change data capture (CDC) feeds of several databases."""

from __future__ import annotations

import multiclouddb_api
from multiclouddb_api import *  # noqa: F403 - the same objects under the name that applications import

__all__ = list(multiclouddb_api.__all__)
