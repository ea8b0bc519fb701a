"""A mesh of simulated workers, slow and small enough that its requests are in every phase at once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spotwise.cli.launch.supervision.run_state import ServiceState
from spotwise.core.costs.cost_model import LinearIterationCost, LinkCost
from spotwise.core.costs.cost_profile import CostProfile
from spotwise.files.cost_profile import profile_as_dict
from spotwise.worker.simulated.serving import read_words
from tests.live.mesh import wait_for
from tests.live.simulated_mesh import SimulatedMesh

#: A process that has stood still for so long is replaced.
HANG_S = 8.0
#: Longer than a process takes to be found, ended and started anew on a busy machine.
_WHOLE_AGAIN_S = 90.0

#: A prompt takes up to half a second, its hand-off a third, a token some 15 ms; half a dozen requests fill a worker. One worker
#: for each phase is enough for the load, with little room.
_PROFILE = CostProfile(
    name="slow and small",
    iteration=LinearIterationCost(
        fixed_s=0.012, prompt_token_s=8e-4, prompt_context_s=0.0, decode_s=1e-3, decode_context_s=0.0
    ),
    link=LinkCost(latency_s=0.3, bytes_per_s=1e9),
    kv_bytes_per_token=1000,
    kv_tokens=3072,
    host_link=LinkCost(latency_s=0.05, bytes_per_s=1e9),
)


class FaultMesh(SimulatedMesh):
    """A worker of each kind, each in a process of its own, two of each control service; KV is swapped where it runs short."""

    #: Workers that decode; a request can move from one to the other.
    DECODERS = ("token-0", "mixed-0")
    WORKERS = frozenset({"prompt-0", *DECODERS})

    def __init__(self, home: Path, *options: str, env: dict[str, str] | None = None) -> None:
        profile = home / "profile.json"
        profile.write_text(json.dumps(profile_as_dict(_PROFILE)), encoding="utf-8")
        workers = ("--prompt-workers", "1", "--token-workers", "1", "--mixed-workers", "1")
        queues = ("--policy", "mlfq", "--profile", str(profile), "--hang-timeout", f"{HANG_S:g}")
        control = ("--gateways", "2", "--schedulers", "2", "--planners", "2")
        super().__init__(home, *workers, *queues, *control, *options, env=env)

    @property
    def urls(self) -> Sequence[str]:
        """Of its gateways."""
        return self.state.options.urls

    def wait_until_whole(self) -> None:
        """Wait until every process is healthy, and no member holds anything of a request."""
        wait_for(lambda: not self._unhealthy(), lambda: f"{self._unhealthy()} to be healthy", _WHOLE_AGAIN_S)
        wait_for(lambda: self.command("status").returncode == 0, lambda: self.command("status").stdout, _WHOLE_AGAIN_S)
        self.wait_until_idle()
        wait_for(lambda: not self._open_requests(), lambda: f"no request: {self._open_requests()}", 20.0)

    def _unhealthy(self) -> list[str]:
        return [each for each, service in self.state.services.items() if service.state is not ServiceState.HEALTHY]

    def _open_requests(self) -> dict[str, Any]:
        """Requests that gateways and schedulers still know, by member."""
        members = [status.member_now for status in self.members()]
        return {each.id: each.open_requests for each in members if each.open_requests}

    def words(self) -> tuple[int, ...]:
        """The vocabulary of its answers."""
        return read_words(Path(self.state.options.model_folder))

    def attempts_of(self, request_id: str) -> int:
        """How many attempts a request's choice took, at most; 1 where the store has forgotten its ledger."""
        entries = self.ledger_entries(request_id)
        return max((int(dict(each.facts)["attempts"]) for each in entries if each.stage == "completed"), default=1)
