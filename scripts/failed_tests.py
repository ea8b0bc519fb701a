"""Say once more, after many parts of a test run, which tests failed, and why: where they failed is far above by then."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

#: Of each failure: the lines before its end say what was expected and what came.
LAST_LINES = 60


def main(folder: Path) -> None:
    """Print the failures of a folder's JUnit reports."""
    for report in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(report).iter("testcase"):
            for failure in (*case.iter("failure"), *case.iter("error")):
                lines = (failure.text or failure.get("message") or "").splitlines()
                sys.stdout.write(f"\nfailed, in part {report.stem}: {case.get('classname')}::{case.get('name')}\n")
                sys.stdout.write("\n".join([*lines[-LAST_LINES:], ""]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
