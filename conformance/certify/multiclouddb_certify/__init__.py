"""`multiclouddb certify` runs the conformance suite on a service, with a plan, a budget and a report.

certification  what a service contributes: a harness, prices, permissions, and how leftovers are found
wire           counts the requests of a run, and ends it at the bound of its budget
run, child     run the suite in a process of its own; the parent removes everything when that process ends
report         the folder that can be attached to an issue

A further provider adds its `Certification` with the entry point `multiclouddb.harnesses`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiclouddb_certify.certification import (
        Certification,
        DrillHarness,
        Granted,
        Permission,
        Run,
        RunPlace,
    )
    from multiclouddb_certify.wire import Price

__all__ = ["Certification", "DrillHarness", "Granted", "Permission", "Price", "Run", "RunPlace"]


def __getattr__(name: str) -> Any:
    """Import the suite when one of its names is used: `multiclouddb --help` imports this package too."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.certification"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
