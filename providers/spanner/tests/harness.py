"""Gives the harness of `multiclouddb certify` Google's emulator, which the tests of a run share."""

import os

from multiclouddb_certify.spanner import SpannerHarness

from .servers.emulator import HASTY, STILL, shared


class EmulatorHarness(SpannerHarness):
    """A harness with Google's emulator, whose partitions do not change."""

    flags = STILL
    prefix = f"db-{os.getpid()}"  # the workers of a run share the emulator

    def open(self):
        emulator = shared(self.flags)
        self.url, self.instance, self.databases = emulator.url, emulator.instance, []


class HastyHarness(EmulatorHarness):
    """A harness with the emulator's fastest settings: partitions live for 3 to 6 seconds."""

    flags = HASTY
    can_still = can_key_order = False  # the changes of a key can go to any partition
