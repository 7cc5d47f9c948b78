"""Makes the picture of a real run in the README: python docs/mirror_picture.py.

It fills an embedded store, runs the commands in a terminal's width, and draws what they have printed.
"""

import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path

from multiclouddb_embedded import EmbeddedStore, Put

PICTURE = Path(__file__).parent / "assets" / "mirror.svg"
COMMAND = "multiclouddb mirror embedded:///data/shop.db main/orders --target delta:/data/orders"
STYLE = "font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre"


def ran(folder: Path, *words: str) -> list[str]:
    """Run the command with its paths in a folder; return its lines."""
    given = [each.replace("/data/", f"{folder}/") for each in (*COMMAND.split()[1:], *words)]
    done = subprocess.run(
        [sys.executable, "-m", "multiclouddb_cli", *given], capture_output=True, text=True, check=True
    )
    shown = " ".join((COMMAND, *words))
    return [f"$ {shown}", *done.stdout.replace(str(folder), "/data").splitlines(), ""]


def drawn(lines: list[str]) -> str:
    """Return a picture of a terminal."""
    width, height = 9 * max(map(len, lines)) + 40, 20 * len(lines) + 30
    texts = [
        f'<text x="20" y="{35 + 20 * number}" fill="{"#7ee787" if line.startswith("$") else "#e6edf3"}" '
        f'xml:space="preserve">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{STYLE}">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
            *texts,
            "</svg>\n",
        ]
    )


def main() -> None:
    """Run the commands, and write the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with EmbeddedStore(folder / "shop.db") as store:
            store.create_collection("orders", partitions=4)
            for first in range(0, 100_000, 1000):
                puts = [Put(f"o-{n}", {"customer": n % 977, "total": n}) for n in range(first, first + 1000)]
                store.batch("orders", puts)
            lines = ran(folder)
            for number in range(500):
                store.put("orders", f"o-{number}", {"customer": 1, "total": -number})
            store.delete("orders", "o-99999")
            lines += ran(folder, "--prove")
    PICTURE.write_text(drawn(lines[:-1]), encoding="utf-8")


if __name__ == "__main__":
    main()
