"""`multiclouddb certify` runs the conformance suite on a service, with a plan, a budget and a report.

certification  what a service contributes: a harness, prices, permissions, and how leftovers are found
wire           counts the requests of a run, and ends it at the bound of its budget
run, child     run the suite in a process of its own; the parent removes everything when that process ends
report         the folder that can be attached to an issue

A further provider adds its `Certification` with the entry point `multiclouddb.harnesses`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from multiclouddb_api.loading import on_first_use

if TYPE_CHECKING:
    from multiclouddb_certify.certification import (
        Certification,
        DrillHarness,
        Granted,
        Permission,
        Place,
        Run,
    )
    from multiclouddb_certify.wire import Price

__all__ = ["Certification", "DrillHarness", "Granted", "Permission", "Place", "Price", "Run"]

if not TYPE_CHECKING:  # `multiclouddb --help` imports this package, to name its command
    __getattr__, __dir__ = on_first_use(
        __name__,
        {"certification": "Certification DrillHarness Granted Permission Place Run", "wire": "Price"},
    )
