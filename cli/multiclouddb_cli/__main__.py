"""Runs the command line with `python -m multiclouddb_cli`, exactly like the script `multiclouddb`."""

from __future__ import annotations

from multiclouddb_cli.script import run

run()
