"""Runs the contract of sinks on Delta tables."""

import shutil

import pytest

from multiclouddb_conformance.targets import *  # noqa: F403
from multiclouddb_conformance.targets.declared import *  # noqa: F403
from multiclouddb_verify import DeltaTarget
from pyspark_multiclouddb import merge_into_delta


class DeltaSink:
    def __init__(self, path, kills):
        self.path, self.kills, self.target = path, kills, DeltaTarget(path)

    def merge(self, batch, batch_id=None, app_id=None, **options):
        return merge_into_delta(batch, batch_id, self.path, app_id, **options)

    def drop(self):
        shutil.rmtree(self.path)

    def dies(self, dice, chance=0.0):
        self.kills(dice=dice, chance=chance)


@pytest.fixture
def sink(path, kills):
    return DeltaSink(path, kills)
