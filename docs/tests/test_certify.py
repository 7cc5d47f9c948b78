"""Checks that the page about `certify` can be tried without an account, with the commands that it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from azure.cosmos import CosmosClient

from multiclouddb_cosmos_emulator import CosmosEmulator

from .page import ROOT

TEXT = (ROOT / "docs/project/certify.md").read_text(encoding="utf-8")
START = "python -m multiclouddb_cosmos_emulator --port 8081\n"


@pytest.mark.slow
def test_it_can_be_tried_without_an_account(tmp_path):
    _, _, section = TEXT.partition("## Try it without an account")
    first, *blocks = re.findall(
        r"^```sh\n(.*?)^```$", section.partition("\n## ")[0], re.DOTALL | re.MULTILINE
    )
    assert first.endswith(START)
    with CosmosEmulator() as server:
        commands = "".join(blocks).replace("http://localhost:8081/", server.endpoint)
        commands = commands.replace("localhost:8081", server.endpoint.split("/")[2])
        assert server.key in commands
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        ran = subprocess.run(
            ["bash", "-euc", commands], cwd=tmp_path, capture_output=True, text=True, timeout=400,
            env={**os.environ, "PATH": programs, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        )  # fmt: skip
        said = f"{ran.stdout}\n{ran.stderr}"
        assert ran.returncode == 0, said
        for word in (
            "done: 7 of 7 tests passed",
            "| TestNow::",
            "waits: no ranges were merged",
        ):
            assert word in said, said
        assert ran.stdout.splitlines()[-1].startswith("done: the drill passed"), said
        with CosmosClient(server.endpoint, server.key, enable_endpoint_discovery=False) as native:
            assert list(native.list_databases()) == []
