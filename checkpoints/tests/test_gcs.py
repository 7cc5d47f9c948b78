"""Tests that this store keeps the promises of every checkpoint store, also when its service fails."""

from multiclouddb_conformance.checkpoint_stores import (  # noqa: F401
    TestCompareAndSet,
    TestCrash,
    TestDamage,
    TestName,
    TestSaveAndLoad,
)

from .trouble import TestPromisedConditions, TestRenewal, TestTrouble  # noqa: F401

SCHEME = "gs"
