"""Checks an environment in which the wheels of a release are installed."""

import importlib
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path

NEEDS_SPARK = {"pyspark_multiclouddb"}


def main() -> None:
    """Import every package, follow a feed twice, and run the command line."""
    ours = {each.name: each for each in distributions() if each.name.startswith("multiclouddb")}
    versions = {each.version for each in ours.values()}
    if len(versions) != 1:
        raise SystemExit(f"several versions are installed: {sorted(versions)}")
    files = [file for each in ours.values() for file in each.files or ()]
    packages = {file.parts[0] for file in files if file.name == "py.typed"}
    for package in sorted(packages - NEEDS_SPARK):
        importlib.import_module(package)

    from multiclouddb import Beginning, follow
    from multiclouddb_embedded import EmbeddedStore

    with tempfile.TemporaryDirectory() as folder, EmbeddedStore(Path(folder, "shop.db")) as store:
        store.create_collection("orders")
        store.put("orders", "o-1", {"status": "new"})
        source, position = f"embedded://{store.path}", f"file://{folder}/positions/orders"
        for wanted in (["o-1"], ["o-2"]):
            with follow(source, "orders", start=Beginning(), checkpoint=position, until_idle=True) as events:
                found = [event.key["id"] for event in events]
            if found != wanted:
                raise SystemExit(f"followed {found}, not {wanted}")
            store.put("orders", "o-2", {"status": "new"})
    command = [str(Path(sys.executable).parent / "multiclouddb"), "--version"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    if versions.pop() not in shown:
        raise SystemExit(f"the command line says {shown!r}")
    sys.stdout.write(f"{len(ours)} distributions with {len(packages)} packages work\n")


if __name__ == "__main__":
    main()
