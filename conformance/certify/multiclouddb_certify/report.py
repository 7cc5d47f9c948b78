"""Writes the folder of a run, which can be attached to an issue as it is."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from multiclouddb_api import invalid_request
from multiclouddb_certify.certification import Certification
from multiclouddb_certify.private_files import make_private_folder, write_private
from multiclouddb_certify.progress import Progress
from multiclouddb_certify.run import Plan

__all__ = ["content_of", "new_folder", "versions", "write_report"]


def new_folder(path: Path) -> Path:
    """Return a folder for a report, which must not exist yet or be empty.

    Raises:
        MulticloudDbError: `INVALID_REQUEST` if a run has written into it.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise invalid_request("--report", f"{path} exists already", "name another folder, or remove it")
    return path


def content_of(
    planned: Plan, progress: Progress, ended: str, budget: float, seconds: float
) -> dict[str, Any]:
    """Return the content of `report.json`: no id of an account, no host, no name of a resource, no value."""
    tests = [
        {
            "name": test.name,
            "outcome": test.outcome,
            "seconds": test.seconds,
            "units": _rounded(test.units),
            "usd": _usd(progress, test.units),
            "error": test.error,
        }
        for test in progress.tests.values()
    ]
    counts = Counter(test["outcome"] for test in tests)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "provider": planned.certification.provider_id,
        "service": planned.place.service,
        "region": planned.place.region,
        "ended": ended,
        "only": planned.only,
        "seconds": round(seconds, 1),
        "versions": versions(planned.certification),
        "counts": dict(counts),
        "budget_usd": budget,
        "estimated": {"units": _rounded(planned.units), "usd": round(planned.usd, 6)},
        "used": {"units": _rounded(progress.units), "usd": round(progress.usd, 6)},
        "operations": dict(sorted(progress.operations.items())),
        "prices": [{"unit": each.unit, "usd": each.usd, "source": each.source} for each in planned.prices],
        "tests": tests,
        "deselected": dict(planned.deselected),
    }


def write_report(folder: Path, content: Mapping[str, Any]) -> None:
    """Write `report.json` and `report.md`."""
    make_private_folder(folder)
    write_private(folder / "report.json", json.dumps(content, indent=2) + "\n")
    write_private(folder / "report.md", _page(content))


def _page(content: Mapping[str, Any]) -> str:
    used, estimated = content["used"], content["estimated"]
    lines = [
        f"# multiclouddb, {content['provider']} on {content['service']}",
        "",
        f"- date: {content['date']}",
        f"- region: {content['region'] or 'none'}",
        f"- ended: {content['ended']}, after {content['seconds']:.0f} s",
        f"- tests: {', '.join(f'{count} {name}' for name, count in content['counts'].items()) or 'none'}",
        *([f"- only a part: the tests that --only {content['only']!r} chose"] if content["only"] else []),
        f"- cost: ${used['usd']:.4f} of a budget of ${content['budget_usd']:.2f}; "
        f"estimated: ${estimated['usd']:.4f}",
        *(
            f"- {unit}: {number:,.0f}; estimated: {estimated['units'].get(unit, 0):,.0f}"
            for unit, number in used["units"].items()
        ),
        *(f"- {name}: {number}" for name, number in content["versions"].items()),
        "",
        "| test | outcome | seconds | requests | USD | error |",
        "|---|---|---|---|---|---|",
    ]
    for test in content["tests"]:
        error = test["error"]
        said = f"{error['error']} {error['category'] or ''} at {error['where']}" if error else ""
        name = test["name"].replace("|", "\\|")
        lines.append(
            f"| {name} | {test['outcome']} | {test['seconds']:.1f} | {test['units'].get('request', 0):g} "
            f"| {test['usd']:.6f} | {said} |"
        )
    lines += ["", "Deselected, because the service or the harness lacks what they need:", ""]
    lines += [f"- {reason}: {count}" for reason, count in content["deselected"].items()] or ["- nothing"]
    return "\n".join([*lines, ""])


def versions(certification: Certification) -> dict[str, str]:
    """Return the versions of the library, of the vendor's SDK, and of what they run on."""
    return {
        "multiclouddb": version("multiclouddb"),
        **certification.versions(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _rounded(units: Mapping[str, float]) -> dict[str, float]:
    return {unit: round(number, 2) for unit, number in sorted(units.items())}


def _usd(progress: Progress, units: Mapping[str, float]) -> float:
    return round(sum(number * progress.prices.get(unit, 0.0) for unit, number in units.items()), 8)
