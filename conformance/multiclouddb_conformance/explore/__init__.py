"""Explores every small history of a service, and checks after each step that the lineage loses nothing.

    python -m multiclouddb_conformance.explore            depths 5 to 9, half an hour
    python -m multiclouddb_conformance.explore --depth 4  all histories of at most four steps

A *history* is a sequence of steps: the service splits, merges, closes, hides, shows or removes partitions,
and a consumer reads them in any order, crashes, and goes on from an older token. `world.py` is the model of a
service, `consumer.py` reads it and says what must hold, and `search.py` visits each state once.
"""
