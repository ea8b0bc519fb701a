"""The dead-man's switch of EC2's instances: they end themselves once no keeper has renewed their mark for long enough.

The keeper writes a tag, `MARK_TAG`, to all of its mesh's instances; an instance reads it from its metadata, which needs no
network of the mesh and no credentials. A script in the launch template's user data looks each minute. It counts minutes in
which the mark did not change, so that no clock matters, and a mark that never came counts as well. Metadata that cannot be
read count as nothing. With the shutdown behaviour `terminate` a shutdown ends the bill.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from spotwise.cloud.instances import OWN_TAGS

#: Tag whose value is the Unix time at which a keeper renewed it.
MARK_TAG = f"{OWN_TAGS}seen"
#: Seconds without a renewal after which an instance ends itself: a control plane of a cloud can be away for an hour.
USUAL_ALONE_S = 7200.0
#: Renewals in that time, at least.
_RENEWALS = 12
_LONGEST_RENEWAL_S = 300.0
_NAME = "spotwise-dead-man"

_SCRIPT = """#!/bin/sh
# {name}: ends this instance once its mesh has not renewed the tag {tag} for {minutes} minutes.
mkdir -p /usr/local/sbin && cat >/usr/local/sbin/{name} <<'END'
#!/bin/sh
metadata="${{SPOTWISE_METADATA:-http://169.254.169.254}}/latest"
read_tag() {{
    token=$(curl -sf -m 5 -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/api/token") || return 2
    names=$(curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/tags/instance/") || return 2
    case "$names" in *{tag}*) ;; *) return 0 ;; esac
    curl -sf -m 5 -H "X-aws-ec2-metadata-token: $token" "$metadata/meta-data/tags/instance/{tag}" || return 2
}}
alone=0 before=
while [ "$alone" -lt {minutes} ]; do
    if mark=$(read_tag); then
        if [ "$mark" != "$before" ]; then alone=0; else alone=$((alone + 1)); fi
        before=$mark
    else
        echo "{name}: this instance's tags cannot be read; the launch template needs InstanceMetadataTags enabled" >&2
    fi
    sleep "${{SPOTWISE_MINUTE_S:-60}}"
done
echo "{name}: no keeper has renewed {tag} for {minutes} minutes; shutting down" >&2
shutdown -h now
END
chmod 755 /usr/local/sbin/{name}
systemd-run --unit={name} --property=Restart=on-failure /usr/local/sbin/{name} ||
    nohup /usr/local/sbin/{name} >/dev/console 2>&1 &
"""


def user_data(alone_s: float) -> str:
    """Return the script for a launch template's user data, for POSIX sh as root; `alone_s`: rounded up to whole minutes."""
    return _SCRIPT.format(name=_NAME, tag=MARK_TAG, minutes=max(1, -int(-alone_s // 60)))


def renewal_s(alone_s: float) -> float:
    """Return the seconds between two renewals of the mark."""
    return min(_LONGEST_RENEWAL_S, alone_s / _RENEWALS)


def template_faults(template: Mapping[str, Any]) -> Sequence[str]:
    """Return what the data of a launch template's version lack for the switch; empty: nothing."""
    script = base64.b64decode(template.get("UserData", "")).decode(errors="replace")
    found = {
        f"its user data have no {_NAME} (spotwise fleet user-data prints it)": _NAME in script,
        "InstanceInitiatedShutdownBehavior is not terminate": template.get("InstanceInitiatedShutdownBehavior")
        == "terminate",
        "MetadataOptions.InstanceMetadataTags is not enabled": template.get("MetadataOptions", {}).get(
            "InstanceMetadataTags"
        )
        == "enabled",
    }
    return [fault for fault, is_there in found.items() if not is_there]
