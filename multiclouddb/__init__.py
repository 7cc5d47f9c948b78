"""The name of the distribution, not of a package; importing it names the package."""

raise ImportError(
    "multiclouddb is the name of the distribution; applications import multiclouddb_api: "
    "from multiclouddb_api import connect"
)
