"""This module only gives the distribution its name; importing it shows the name."""

raise ImportError(
    "multiclouddb is the name of the distribution; applications import multiclouddb_api: "
    "from multiclouddb_api import connect"
)
