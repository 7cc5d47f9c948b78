"""Renews the estimates of a provider: `python -m multiclouddb_certify.measure report.json …`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from multiclouddb_certify.certification import load_certification

__all__ = ["main"]

_FOLDER: Final = Path(__file__).parent / "estimates"


def main(reports: Sequence[str]) -> None:
    """Write what each passed test used; a later report replaces the numbers of an earlier one."""
    for report in reports:
        content = json.loads(Path(report).read_text())
        file = _FOLDER / f"{content['provider']}.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        fixed = load_certification(f"{content['provider']}://").fixed_units(0)
        known |= {
            test["name"]: {
                "seconds": round(test["seconds"], 1),
                "units": {unit: number for unit, number in test["units"].items() if unit not in fixed},
            }
            for test in content["tests"]
            if test["outcome"] == "passed"
        }
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
        file.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
