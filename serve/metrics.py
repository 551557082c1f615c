"""Figures for Prometheus: numbers, and nothing of what was said."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from omnidraft.runtime.statistics import Statistics
from omnidraft.serve.models import Models

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What was answered, of each model.

    Args:
        waiting: tells how many requests wait.
        running: tells how many are being answered.
        models: which are opened and closed.
    """

    def __init__(
        self, waiting: Callable[[], int], running: Callable[[], int], models: Models
    ) -> None:
        self._registry = CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"omnidraft_{name}", text, ("model", *labels), registry=self._registry)

        self._answers = counter("answers", "Answers that ended", "finish_reason")
        self._prompt = counter("prompt_tokens", "Tokens of prompts")
        self._kept = counter("prompt_kept_tokens", "Of them, those in the KV cache already")
        self._tokens = counter("answer_tokens", "Tokens of answers")
        self._rounds = counter("rounds", "Passes of the target after the prompt")
        self._proposed = counter("proposed_tokens", "Tokens that were proposed and scored")
        self._accepted = counter("accepted_tokens", "Of them, those that stood")
        self._reading = Histogram(
            "omnidraft_prompt_seconds",
            "Seconds of reading a prompt",
            ("model",),
            registry=self._registry,
        )
        self._decoding = Histogram(
            "omnidraft_decoding_seconds",
            "Seconds from the end of the prompt to the last token",
            ("model",),
            registry=self._registry,
        )
        for name, text, value in (
            ("waiting_requests", "Requests that wait", waiting),
            ("running_requests", "Requests being answered", running),
            ("open_targets", "Targets that are open", lambda: models.count),
            ("open_bytes", "Bytes of their weights and KV caches", lambda: models.nbytes),
            ("target_loads", "How often a target was opened", lambda: models.loads),
        ):
            Gauge(f"omnidraft_{name}", text, registry=self._registry).set_function(value)

    def observe(self, model: str, reason: str, statistics: Statistics) -> None:
        """Count an answer; from any thread."""
        self._answers.labels(model, reason).inc()
        for counter, count in (
            (self._prompt, statistics.prompt_tokens),
            (self._kept, statistics.prompt_kept),
            (self._tokens, statistics.target_tokens),
            (self._rounds, statistics.rounds),
            (self._proposed, statistics.proposed),
            (self._accepted, statistics.accepted),
        ):
            counter.labels(model).inc(count)
        self._reading.labels(model).observe(statistics.prompt_seconds)
        self._decoding.labels(model).observe(statistics.seconds)

    def text(self) -> bytes:
        """As Prometheus reads them."""
        return generate_latest(self._registry)
