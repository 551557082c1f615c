"""What a profile holds. ``omnidraft profile --json`` prints it with these keys.

The keys of a schema version stay; new ones may come. Durations are wall-clock milliseconds, sizes
are bytes; None stands for what this machine or run cannot tell.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from omnidraft.runtime.profiling.devices import DeviceProfile
from omnidraft.runtime.profiling.energy import Source
from omnidraft.runtime.profiling.machine import Machine
from omnidraft.runtime.profiling.summary import PassSummary, Summary

RoundKind = Literal["plain", "chain", "tree", "lookup"]
"""See ``Rounds``."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Settings(_Part):
    """How the profile was made."""

    prompts: int
    repeats: int
    max_new_tokens: int
    target_threads: int
    drafter_threads: int
    draft_length: int | Literal["auto"]
    """Draft tokens a round, at most; auto: as many as pay for themselves."""
    tree: int | None
    """Nodes that each round proposed as a tree, if that was asked for."""
    quantization: str
    """Asked for; a model that is ready as it is keeps its own."""


class Load(_Part):
    """From a converted model on disk to a session; a warm disk is much faster than a cold one."""

    target_ms: float
    drafter_ms: float
    pairing_ms: float
    """Vocabularies matched, trie and empty n-gram cache built."""


class TimePerToken(_Part):
    """Mean milliseconds of a token, by what was at work; the sum is 1000 ÷ tokens per second."""

    draft_ms: float
    target_ms: float
    native_ms: float
    """Walks of the trie while drafting, and verification."""
    python_ms: float
    """The rest: the loop, translation, detokenization."""


class Rounds(_Part):
    """How many rounds proposed what."""

    plain: int = 0
    """Nothing: the target took one token."""
    chain: int = 0
    """Drafted tokens in a row."""
    tree: int = 0
    """A tree of drafted tokens that branches."""
    lookup: int = 0
    """Tokens found in the text before; the drafter did not run."""


class Mode(_Part):
    """Plain or speculative decoding. The prompt's share is in ``prompt`` and ``first_token`` only.

    Each round is a sample of ``round``, ``native`` and ``python``; each token one of ``token``, an
    equal share of its round; each answer one of ``prompt`` and ``first_token``.
    """

    tokens: int
    rounds: int
    rounds_by_kind: Rounds
    nodes_per_round: float
    """Proposed target tokens that a round scored, of a tree all its nodes."""
    tokens_per_second: float
    """Median over repeats, each all tokens ÷ all seconds."""
    tokens_per_second_of_repeats: list[float]
    block_efficiency: float
    """Target tokens a round."""
    acceptance_rate: float
    """Accepted ÷ proposed target tokens; 0 where nothing is proposed."""
    time_per_token: TimePerToken
    prompt: Summary | None
    """The target reads the prompt."""
    prompt_tokens_per_second: float | None
    first_token: Summary | None
    """From the call to the first piece of text: chat template, prompt and first round."""
    token: Summary | None
    round: Summary | None
    native: Summary | None
    python: Summary | None
    target_passes: list[PassSummary]
    """After the prompt, chains and trees, by the number of rows scored at once."""
    draft_prompt: Summary | None
    """The drafter reads a whole context: the prompt, or what it keeps when its context is full."""
    draft_passes: list[PassSummary]
    """The others, by the number of draft tokens read at once; a round's first pass catches up, and
    those of kind "tree" are layers of one."""


class Speedup(_Part):
    """Speculative ÷ plain tokens per second of the repeats, which take turns."""

    median: float
    lowest: float
    highest: float
    repeats: list[float]
    identical: int
    """Prompts whose answer is the same tokens both ways."""


class KvCache(_Part):
    """Keys and values of one model."""

    allocated: int
    """Address space; memory is taken only when written."""
    touched: int
    """Written, for the longest sequence of this run."""


class Memory(_Part):
    """Of this process, which holds both models. Sizes in bytes.

    ``runtime`` is the resident memory less weights, KV caches and n-gram cache: Python, libraries,
    engines' working memory, vocabularies. Weights are counted by their size on disk; what an engine
    repacks or has not read yet shows in ``runtime``, which then may even be negative.
    """

    resident: int | None
    peak: int | None
    """From before loading, conversion excluded where the system allows (see ``peak_since``)."""
    peak_since: Literal["load", "start"]
    before_load: int | None
    after_target: int | None
    after_drafter: int | None
    after_pairing: int | None
    target_weights: int
    drafter_weights: int
    target_kv: KvCache | None
    drafter_kv: KvCache | None
    ngram_cache: int
    ngrams: int
    """Entries of the n-gram cache."""
    runtime: int | None


class Energy(_Part):
    """Joules by the machine's counters, which see other programs' work too."""

    source: Source | None
    reason: str
    """What is counted, or why nothing can be."""
    plain_joules_per_token: float | None
    speculative_joules_per_token: float | None


class Simulation(_Part):
    """The device that was simulated, and what of it was in force."""

    device: DeviceProfile
    drafter_simulated: bool
    """Whether the drafter's passes took the table's time."""
    subtracted_seconds: float
    """Time that this machine took for drafter passes beyond the device's, left out of every figure.
    Where this machine was faster it waited, so that there is nothing to add."""


class Profile(_Part):
    """Everything that was measured."""

    schema_version: Literal[2] = 2
    created: datetime
    target: str
    drafter: str
    batch_invariant: bool
    machine: Machine
    settings: Settings
    simulation: Simulation | None
    load: Load
    plain: Mode
    speculative: Mode
    speedup: Speedup
    memory: Memory
    energy: Energy

    @property
    def target_passes(self) -> list[PassSummary]:
        """Of both modes: passes over one token are plain decoding's, which has far more of them."""
        one = [each for each in self.plain.target_passes if each.tokens == 1]
        return one + [each for each in self.speculative.target_passes if each.tokens > 1]
