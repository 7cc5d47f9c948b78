"""The services that the explorer reads with `--level`, each made when it is asked for."""

from functools import partial
from importlib import import_module

from multiclouddb_conformance.explore.simulated import SIMULATED


def _made(name):
    return getattr(import_module(f".service_{name}", __package__), f"{name.title()}Service")()


SERVICES = SIMULATED | {name: partial(_made, name) for name in ("embedded", "cosmos", "dynamo", "spanner")}
