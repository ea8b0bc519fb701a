"""Decodes messages of which most say what the one before them said: heartbeats of members with nothing new."""

from __future__ import annotations

from spotwise.core.latest import LatestDict
from spotwise.core.messages.mesh import Message
from spotwise.mesh.ports.ports import BusMessage
from spotwise.wire.codec import decode

#: Subjects whose last message is kept; one for each member of the mesh, the ones that were heard last.
_KEPT = 4096


class RepeatedMessages:
    """The last message of each subject; core's messages never change, so that the same one is returned again."""

    def __init__(self) -> None:
        self._last = LatestDict[str, tuple[bytes, Message]](_KEPT)

    def decode(self, raw: BusMessage) -> Message:
        """Return the message; raises `MalformedMessageError` as `decode` of the codec."""
        known = self._last.get(raw.subject)
        if known is not None and known[0] == raw.payload:
            return known[1]
        message = decode(raw.payload)
        self._last[raw.subject] = raw.payload, message
        return message
