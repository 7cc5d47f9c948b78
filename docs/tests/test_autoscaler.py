"""Tests the autoscaler's example of the page *Lag, metrics and alerts*."""

import re

import yaml

from multiclouddb_cli.exporter import _HELP

from .page import Page

PAGE = Page("reference/metrics.md")


def test_the_autoscaler_asks_for_a_metric_of_the_exporter_and_keeps_the_workers_if_there_is_none():
    blocks = re.findall(r"^```yaml\n(.*?)^```$", PAGE.text, re.DOTALL | re.MULTILINE)
    [scaled] = [each for each in map(yaml.safe_load, blocks) if each.get("kind") == "ScaledObject"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert scaled["spec"]["minReplicaCount"] > 0  # somebody has to notice that there are changes
    [trigger] = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    metadata = trigger["metadata"]
    assert {type(each) for each in metadata.values()} == {str}  # KEDA takes nothing else
    assert metadata["ignoreNullValues"] == "false"
    [metric] = re.findall(r"multiclouddb_position_(\w+)", metadata["query"])
    assert metric in _HELP
