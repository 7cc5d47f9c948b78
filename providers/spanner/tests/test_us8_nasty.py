"""Runs the suite on a server that is as awkward as the protocol allows."""

from multiclouddb_certify.suites.spanner import *  # noqa: F403

from .scripted import NastyHarness

HARNESS = NastyHarness

# What an awkward answer can change: where it is cut, and when children are told.
FORM = {
    "TestMerge": "children are told late, and more than once",
    "TestPageSize": "answers are cut inside a transaction",
    "TestTransactions": "answers are cut inside a transaction",
}
