"""The default target and the default drafter: the promises, on real models.

Fetches the target once (93 MB) into the cache folder; skipped where that is not possible.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from omnidraft import GenerationOptions, Origin, SamplingParameters, Session
from omnidraft._native import NgramCache, Speller, VocabularyPair
from omnidraft.runtime.decoding.decoder import SpeculativeDecoder
from omnidraft.runtime.decoding.drafting import Drafting
from omnidraft.runtime.errors import ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models import load_model
from omnidraft.runtime.pairing import native_vocabulary

pytestmark = pytest.mark.usefixtures("all_cores")

PROMPTS = [
    "A train has 12 wagons with 48 seats each. 97 seats are free. How many people sit?",
    "Complete this Python function:\n\ndef median(values):\n\t# tabs\n",
    "Erkläre 中文 and العربية in one line 😀\r\n",
    "",
]


@pytest.fixture(scope="module")
def session(users_cache: None) -> Session:
    try:
        return Session(load_model("smollm2-135m"), load_model("default", threads=1))
    except ModelNotFoundError as error:
        pytest.skip(f"the default target cannot be fetched here: {error}")
    except OmniDraftError as error:
        if "disk" in str(error).lower():
            pytest.skip(str(error))
        raise


def test_the_converted_target_is_batch_invariant(session: Session) -> None:
    assert session.target.batch_invariant


def test_greedy_answers_are_the_plain_ones_and_take_fewer_rounds(session: Session) -> None:
    rounds = tokens = 0
    for prompt in PROMPTS:
        plain = session.generate(prompt, GenerationOptions(48, draft_length=0))
        for length in (2, 4, 9):
            answer = session.generate(prompt, GenerationOptions(48, draft_length=length))
            assert answer.token_ids == plain.token_ids
            assert answer.text == plain.text
        rounds += answer.statistics.rounds
        tokens += answer.statistics.target_tokens
    assert tokens > 1.5 * rounds


def test_sampled_tokens_follow_the_target_with_merges(session: Session) -> None:
    assert session.drafter is not None
    target, drafter = session.target, session.drafter
    tokenizer = target.tokenizer
    pair = VocabularyPair(
        native_vocabulary(drafter.tokenizer, drafter.model.vocab_size),
        native_vocabulary(tokenizer, target.model.vocab_size),
    )
    cache = NgramCache(pair)
    speller = Speller(pair, drafter.tokenizer.segment)
    # Every token that the drafter can spell: merges wherever they can be.
    for token in range(tokenizer.vocab_size):
        cache.observe(token, list(speller.spell(token)))
    assert len(cache) > 20_000
    drafting = Drafting(drafter.model, cache, speller, begin=(drafter.tokenizer.bos_id or 0,))
    prompt = tokenizer.encode("Climate change is caused by greenhouse gas")
    sampling = SamplingParameters(temperature=1.0, top_k=12)
    counts: Counter[tuple[int, int]] = Counter()
    merged = 0
    for seed in range(250):
        run = SpeculativeDecoder(target.model, drafting, sampling=sampling, seed=seed)
        emitted = list(run.generate(prompt, 6))[:2]  # room for drafts of several tokens
        merged += sum(e.origin == Origin.MERGED for e in emitted)
        counts[emitted[0].token, emitted[1].token] += 1
    assert merged > 50
    model = target.model
    first = Counter[int]()
    for (one, _), count in counts.items():
        first[one] += count
    contexts = [(first, prompt)]
    for token, _ in first.most_common(3):
        following = Counter({two: c for (one, two), c in counts.items() if one == token})
        contexts.append((following, [*prompt, token]))
    for observed, context in contexts:
        model.truncate(0)
        logits = model.forward(context, rows=1)[0].astype(np.float64)
        logits[logits < np.sort(logits)[-12]] = -np.inf
        p = np.exp(logits - logits.max())
        expected = sum(observed.values()) * p / p.sum()
        assert all(expected[token] > 0 for token in observed)
        often = np.flatnonzero(expected >= 5)
        seen = [observed[int(token)] for token in often]
        rest = sum(observed.values()) - sum(seen), expected.sum() - expected[often].sum()
        seen, wanted = [*seen, rest[0]], [*expected[often], rest[1]]
        if rest[1] < 1e-9:
            assert rest[0] == 0
            seen, wanted = seen[:-1], wanted[:-1]
        if len(seen) > 1:
            assert chisquare(seen, wanted).pvalue > 1e-4
