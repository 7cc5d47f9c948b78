"""Tests that the manifests of the page *On Kubernetes* fit each other and the command."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from .page import ROOT

TEXT = (ROOT / "docs/jobs/on-kubernetes.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```yaml title="(\S+)"\n(.*?)^```$', TEXT, re.DOTALL | re.MULTILINE))
COMMAND = Path(sys.executable).with_name("multiclouddb")


def loaded(name):
    return list(yaml.safe_load_all(FILES[name]))


def pod(name):
    """Return the specification of the pods of a manifest."""
    (manifest,) = loaded(name)
    spec = manifest["spec"]
    return (spec["jobTemplate"]["spec"] if manifest["kind"] == "CronJob" else spec)["template"]["spec"]


def arguments(name):
    """Return what the image's entry point gets."""
    (first,) = loaded(name)
    return first["args"] if "args" in first else pod(name)["containers"][0]["args"]


@pytest.mark.parametrize("name", ["nightly.yaml", "alarm.yaml", "follow.yaml"])
def test_the_command_has_every_option(name):
    words = arguments(name)
    command = words[: 2 if words[0] == "token" else 1]
    shown = subprocess.run(
        [COMMAND, *command, "--help"],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    options = [word for word in words if word.startswith("--")]
    assert options
    assert [option for option in options if not re.search(rf"^ +{option}\b", shown, re.MULTILINE)] == []


def test_the_connection_is_where_the_command_looks_and_its_secret_is_given():
    settings, secret = loaded("feed.yaml")
    for name in ("nightly.yaml", "follow.yaml"):
        (container,) = pod(name)["containers"]
        volumes = {each["name"]: each for each in pod(name)["volumes"]}
        places = {each["mountPath"]: volumes[each["name"]] for each in container["volumeMounts"]}
        folder, file = container["args"][1].rsplit("/", 1)
        assert places[folder]["configMap"]["name"] == settings["metadata"]["name"]
        connection = tomllib.loads(settings["data"][file])["connection"]
        assert container["envFrom"] == [{"secretRef": {"name": secret["metadata"]["name"]}}]
        assert connection["password"]["env"] in secret["stringData"]


def test_the_alarm_looks_at_the_table_that_the_job_writes():
    words = arguments("nightly.yaml")
    assert f"table:{words[words.index('--target') + 1]}" in arguments("alarm.yaml")
    assert words[1] in arguments("alarm.yaml")


def test_the_probes_ask_where_the_command_listens():
    (container,) = pod("follow.yaml")["containers"]
    host, port = container["args"][container["args"].index("--listen") + 1].split(":")
    # On localhost, which is the default, no probe would reach it.
    assert host == "0.0.0.0"
    (named,) = container["ports"]
    assert named["containerPort"] == int(port)
    paths = {}
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["port"] == named["name"]
        paths[asked["path"]] = probe
    assert set(paths) == {"/live", "/ready"}
