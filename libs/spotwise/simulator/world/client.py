"""The clients of a simulated mesh, and as much of a gateway as they need.

Law: a client asks once, at its time, and waits for every token of its answer; a token counts from when it arrives here. The
live gateway's other half, attempts that are made again, has no work in a world where nobody dies. Where prompts are interrupted
(`interrupted_prompts.py`) the parts that are lost of one are asked for first, each as a request that nobody hears of.

Invariants: a stream's tokens arrive in order, each once; a request ends once: answered, or told why not; whatever is known of
it is forgotten then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from spotwise.core import messages as m
from spotwise.core.record import RequestRecord
from spotwise.core.request import FinishReason, StopCriteria
from spotwise.core.sampling import SamplingParams
from spotwise.simulator.world.control_plane import ControlPlane
from spotwise.simulator.world.events import EventQueue
from spotwise.simulator.world.observation import Arrival, CompletedRequest, Observer
from spotwise.simulator.world.settings import WorldSettings
from spotwise.simulator.world.token_times import TOKEN_ID, Progress

_EPOCH = 1
_GREEDY = SamplingParams(temperature=0.0)


class SimulationError(RuntimeError):
    """The mesh did what a mesh must not do: a bug in a role, or in the world around it."""


@dataclass(slots=True)
class _Live:
    """A request that has not ended.

    Attributes:
        output_tokens: of its answer.
        prompts_to_come: that are asked for when it has been answered, the whole one last; empty where this is that one.
    """

    arrival: Arrival
    record: RequestRecord
    progress: Progress
    output_tokens: int
    prompts_to_come: tuple[int, ...]
    first_token_s: float | None = None
    delivered: int = 0  #: tokens, those included that were only counted


class Client:
    """Everybody who asks.

    Attributes:
        completed, failed: requests so far.
        ended_s: when the last one ended.
    """

    def __init__(
        self,
        client_id: str,
        scheduler_id: str,
        queue: EventQueue,
        control: ControlPlane,
        observer: Observer,
        settings: WorldSettings,
    ) -> None:
        self.id = client_id
        self.completed = self.failed = 0
        self.ended_s = 0.0
        self._scheduler_id = scheduler_id
        self._queue = queue
        self._control = control
        self._observer = observer
        self._settings = settings
        self._asked = 0
        self._live: dict[int, _Live] = {}
        self._receivers: dict[type, Any] = {
            m.RequestAccepted: lambda message: None,
            m.RequestAssigned: lambda message: None,
            m.RequestRejected: self._rejected,
            m.TokenBatch: self._tokens_came,
        }
        control.open_inbox(client_id, lambda message: self._receivers[type(message)](message))

    @property
    def live(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def ask(self, arrival: Arrival) -> None:
        """Send a request now."""
        interrupted = self._settings.interrupted
        lost_parts = () if interrupted is None else interrupted.lost_parts(arrival.prompt_tokens)
        self._submit(arrival, (*lost_parts, arrival.prompt_tokens))

    def _submit(self, arrival: Arrival, prompts: tuple[int, ...]) -> None:
        """Ask for the first of these prompts; all but the last are worth one token."""
        number, settings = self._asked, self._settings
        self._asked += 1
        prompt_tokens, to_come = prompts[0], prompts[1:]
        output_tokens = 1 if to_come else arrival.output_tokens
        stop, prompt = StopCriteria(max_new_tokens=output_tokens), _prompt(prompt_tokens)
        record = RequestRecord(
            str(number), _EPOCH, self.id, number, settings.model.name, prompt, (), _GREEDY, stop, arrival.at_s
        )
        self._live[number] = _Live(arrival, record, Progress(prompt_tokens), output_tokens, to_come)
        asked_tokens = settings.asked_tokens(output_tokens)
        stream = m.StreamRef(self.id, number)
        order = m.SubmitRequest(record.choice_id, _EPOCH, stream, prompt_tokens, asked_tokens)
        self._control.send(self._scheduler_id, order)

    # --- the store ----------------------------------------------------------------------------------------------------

    def record(self, choice_id: str, epoch: int) -> RequestRecord | None:
        """Return what a worker must know of a request, as long as that is live."""
        live = self._live.get(int(choice_id))
        return None if live is None else live.record

    def progress(self, choice_id: str) -> Progress:
        """Return how far a live request is."""
        return self._live[int(choice_id)].progress

    # --- the gateway's inbox ------------------------------------------------------------------------------------------

    def _rejected(self, message: m.RequestRejected) -> None:
        self._fail(int(message.choice_id), f"{message.code.value}: {message.message}")

    def _tokens_came(self, batch: m.TokenBatch) -> None:
        for delta in batch.deltas:
            live = self._live.get(delta.attempt_id)
            if live is None:
                raise SimulationError(f"a token for stream {delta.attempt_id}, which has ended")
            if delta.finish_reason is FinishReason.ERROR:
                self._fail(delta.attempt_id, delta.error)
                continue
            # an ending after tokens that were only counted says how many they are; all else is a token by its index
            is_ending = delta.token_id is None and delta.finish_reason is not None
            tokens = delta.token_index if is_ending else delta.token_index + 1
            if live.first_token_s is None:
                live.first_token_s = self._queue.now
                if tokens != 1:
                    raise SimulationError(f"stream {delta.attempt_id} begins with token {tokens}")
            if tokens <= live.delivered:
                raise SimulationError(f"stream {delta.attempt_id} got token {tokens} after token {live.delivered}")
            live.delivered = tokens
            if delta.finish_reason is not None:
                self._complete(delta.attempt_id, live, live.first_token_s, delta.finish_reason)

    def _complete(self, number: int, live: _Live, first_token_s: float, reason: FinishReason) -> None:
        arrival, progress = live.arrival, live.progress
        if reason is not FinishReason.LENGTH or not live.delivered == progress.output_tokens == live.output_tokens:
            raise SimulationError(
                f"request {number} ended by {reason.value} with {live.delivered} of {live.output_tokens} tokens, "
                f"{progress.output_tokens} of which were made"
            )
        if live.prompts_to_come:
            self._close(number, finished=True)
            self._submit(arrival, live.prompts_to_come)
            return
        self.completed += 1
        self._observer.request_completed(CompletedRequest(arrival, first_token_s, self._queue.now))
        self._close(number, finished=True)

    def _fail(self, number: int, reason: str) -> None:
        self.failed += 1
        self._observer.request_failed(self._live[number].arrival, reason)
        self._close(number, finished=False)

    def _close(self, number: int, *, finished: bool) -> None:
        del self._live[number]
        self.ended_s = self._queue.now
        self._control.send(self._scheduler_id, m.CloseRequest(str(number), _EPOCH, finished))


@lru_cache(maxsize=16_384)
def _prompt(tokens: int) -> tuple[int, ...]:
    """Return a prompt of that length: one for all that have it, because hundreds of thousands may be live at once."""
    return (TOKEN_ID,) * tokens
