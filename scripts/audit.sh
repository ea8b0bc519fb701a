#!/usr/bin/env bash
# Compare requirements.lock with the vulnerabilities that PyPI publishes, with pip-audit in an environment of its own. A finding
# fails. Where no service answers, or a mirror answers without vulnerabilities, nothing is compared: that is said, and is no
# failure.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1

# A version whose vulnerabilities are known: a service that has none for it has none at all.
known() {
  "$python" - <<'END'
import json, sys, urllib.request
try:
    with urllib.request.urlopen("https://pypi.org/pypi/jinja2/2.4/json", timeout=10) as answer:
        sys.exit(not json.load(answer).get("vulnerabilities"))
except (OSError, ValueError):
    sys.exit(1)
END
}

if ! known; then
  echo "SKIP: no service of published vulnerabilities answers, so requirements.lock is not audited"
  exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip --disable-pip-version-check install -qq pip-audit
"$folder/venv/bin/pip-audit" --requirement requirements.lock --disable-pip --require-hashes --progress-spinner off
