"""The asyncio version of the library: `from multiclouddb.aio import connect`."""

from __future__ import annotations

from multiclouddb_api import aio
from multiclouddb_api.aio import *  # noqa: F403 - the same objects under the name that applications import

__all__ = list(aio.__all__)
