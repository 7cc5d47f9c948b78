"""Runs the explorer on the model and on every provider, as `python -m tests.lineage` in this repository."""

import logging
import sys

from multiclouddb_conformance.explore.__main__ import main

from .services import SERVICES

logging.disable(logging.CRITICAL)  # a lost position is a warning, and most histories lose one
sys.exit(main(services=SERVICES))
