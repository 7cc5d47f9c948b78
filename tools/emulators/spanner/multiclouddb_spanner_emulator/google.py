"""Finds Google's own emulator of Cloud Spanner, if the Google Cloud SDK on this machine contains it."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

__all__ = ["google_emulator"]


@cache
def google_emulator() -> Path | None:
    """Return the path of the installed emulator program, or None."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return None
    command = [gcloud, "info", "--format=value(installation.sdk_root)"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = Path(answer.stdout.strip(), "bin", "cloud_spanner_emulator", "emulator_main")
    return found if found.is_file() else None
