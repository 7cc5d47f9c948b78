"""Runs the command as `python -m multiclouddb_cli`, which is the same as the script `multiclouddb`."""

from __future__ import annotations

from multiclouddb_cli.main import run

run()
