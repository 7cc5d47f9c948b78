"""Importing this module fails, because `multiclouddb` is only the name of the distribution."""

raise ImportError(
    "multiclouddb is the name of the distribution; applications import multiclouddb_api: "
    "from multiclouddb_api import connect"
)
