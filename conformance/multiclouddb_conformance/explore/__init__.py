"""Explores every small history of a service, and checks after each step that the lineage loses nothing.

    python -m multiclouddb_conformance.explore            the bounds that `make test` uses
    python -m multiclouddb_conformance.explore --depth 7  all histories of at most seven steps

A *history* is a sequence of steps: the service splits, merges, closes, hides, shows or removes partitions,
and a consumer reads them in any order, crashes, and goes on from an older token. `world.py` is the model of
service and consumer, `search.py` visits each state once, `report.py` prints what was explored.
"""
