"""The series of vLLM's dashboard about finished requests: sizes, and times of their phases.

Names, meanings and buckets are vLLM's, so that one dashboard shows both. A sequence is one choice of one prompt; a request is
one prompt with all its choices. Not shown, for the gateway cannot measure them: tokens of an iteration
(`vllm:iteration_tokens_total`), and the prefill time of a sequence whose first token came from a later attempt.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram

_PHASE_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_TIME_PER_TOKEN_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_CHOICES_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


def token_buckets(context_length: int) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, 50, … as far as a context of so many tokens reaches."""
    decades = range(len(str(context_length)))
    edges = (mantissa * 10**decade for decade in decades for mantissa in (1, 2, 5))
    return tuple(float(edge) for edge in edges if edge <= context_length)


@dataclass(frozen=True, slots=True)
class EndedSequence:
    """The measurements of a sequence that produced a token.

    Attributes:
        prompt_tokens: of its prompt.
        max_tokens: bound of its output tokens.
        output_tokens: that it produced.
        prefill_s: from the beginning of its prefill to its first token; `None` where a later attempt brought that.
        decode_s: from its first token to its last.
    """

    prompt_tokens: int
    max_tokens: int
    output_tokens: int
    prefill_s: float | None
    decode_s: float


class RequestSeries:
    """Histograms of what has ended.

    Args:
        registry: where they are registered.
        model_name: value of their label `model_name`.
        context_length: most tokens of prompt and output together.
    """

    def __init__(self, registry: CollectorRegistry, model_name: str, context_length: int) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            series = Histogram(f"vllm:{name}", text, ("model_name",), registry=registry, buckets=buckets)
            return series.labels(model_name)

        tokens = token_buckets(context_length)
        self._prompt_tokens = histogram("request_prompt_tokens", "Prompt tokens of a sequence.", tokens)
        self._output_tokens = histogram("request_generation_tokens", "Output tokens of a sequence.", tokens)
        self._max_tokens = histogram("request_params_max_tokens", "Bound of output tokens of a sequence.", tokens)
        self._most_output_tokens = histogram(
            "request_max_num_generation_tokens", "Output tokens of a request's longest choice.", tokens
        )
        self._choices = histogram("request_params_n", "Choices of a request.", _CHOICES_BUCKETS)
        self._prefill_s = histogram("request_prefill_time_seconds", "Prefill to first token.", _PHASE_BUCKETS)
        self._decode_s = histogram("request_decode_time_seconds", "First token to last.", _PHASE_BUCKETS)
        self._inference_s = histogram("request_inference_time_seconds", "Prefill to last token.", _PHASE_BUCKETS)
        self._s_per_token = histogram(
            "request_time_per_output_token_seconds",
            "Mean time per output token of a sequence.",
            _TIME_PER_TOKEN_BUCKETS,
        )

    def sequence_ended(self, ended: EndedSequence) -> None:
        """Observe one choice of a prompt."""
        self._prompt_tokens.observe(ended.prompt_tokens)
        self._output_tokens.observe(ended.output_tokens)
        self._max_tokens.observe(ended.max_tokens)
        self._decode_s.observe(ended.decode_s)
        if ended.output_tokens > 1:
            self._s_per_token.observe(ended.decode_s / (ended.output_tokens - 1))
        if ended.prefill_s is not None:
            self._prefill_s.observe(ended.prefill_s)
            self._inference_s.observe(ended.prefill_s + ended.decode_s)

    def request_ended(self, output_tokens: list[int]) -> None:
        """Observe a prompt all of whose choices have been answered, with the output tokens of each."""
        self._choices.observe(len(output_tokens))
        self._most_output_tokens.observe(max(output_tokens))
