"""Prints the table of mutants."""

from __future__ import annotations

import sys

from multiclouddb_conformance.mutants import mutant_table

sys.stdout.write(mutant_table() + "\n")
