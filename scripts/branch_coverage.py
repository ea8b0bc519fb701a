"""Fail where fewer branches of the code under `coverage` were taken than a bound: `python branch_coverage.py 95`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from coverage import Coverage


def main(least_percent: float) -> int:
    """Print the share of branches taken, and the files that lack most; return the exit status."""
    coverage = Coverage()
    coverage.load()
    with TemporaryDirectory() as folder:
        coverage.json_report(outfile=str(Path(folder) / "coverage.json"))
        report = json.loads((Path(folder) / "coverage.json").read_text())
    taken, branches = (report["totals"][name] for name in ("covered_branches", "num_branches"))
    percent = 100 * taken / branches
    sys.stdout.write(
        f"branches taken: {taken} of {branches}, {percent:.1f} %; at least {least_percent:g} % are wanted\n"
    )
    if percent >= least_percent:
        return 0
    missing = {path: file["summary"]["missing_branches"] for path, file in report["files"].items()}
    for path in sorted(missing, key=lambda path: -missing[path])[:10]:
        sys.stdout.write(f"  {missing[path]:4} not taken in {path}: {report['files'][path]['missing_branches']}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
