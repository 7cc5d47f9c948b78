"""The whole conformance suite as it is."""

from multiclouddb_conformance.us8 import *  # noqa: F403
