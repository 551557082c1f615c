"""Trees of proposed tokens: what is drafted, and that a walk emits what plain decoding does."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from enumeration import Instance, random_instance
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from omnidraft._native import (
    History,
    Judgement,
    NgramCache,
    Origin,
    SamplingParameters,
    TreeDraft,
    TreeProposal,
    TreeVerdict,
    Vocabulary,
    VocabularyPair,
    Walker,
    end_round,
    shape,
    uniform_at,
)

SAMPLING = {
    "greedy": SamplingParameters(),
    "greedy, penalty": SamplingParameters(repetition_penalty=1.5),
    "plain": SamplingParameters(temperature=1.0),
    "cold, penalty": SamplingParameters(temperature=0.4, repetition_penalty=1.3),
    "top-k": SamplingParameters(temperature=1.3, top_k=3),
    "top-p, min-p": SamplingParameters(temperature=0.8, top_p=0.8, min_p=0.05),
}
DRAFTED = (Origin.DIRECT, Origin.MERGED)

Path = tuple[int, ...]


def grow(world: Instance, draft: TreeDraft, answer: Path, rng: np.random.Generator) -> None:
    """Expands some draft nodes and adds some looked-up paths."""
    paths: dict[int, Path] = {0: ()}
    for _ in range(rng.integers(0, 3)):
        tokens = rng.integers(0, world.target_size, rng.integers(1, 4)).tolist()
        draft.add_path(tokens, float(rng.random()))
    if rng.random() < 0.1:
        return
    draft.expand(0, world.logits("q", (len(answer), *answer)))
    for _ in range(rng.integers(0, 4)):
        for node, token, parent, _ in draft.frontier(int(rng.integers(1, 4)), 0.01):
            paths[node] = (*paths[parent], token)
            draft.expand(node, world.logits("q", (len(answer), *answer, *paths[node])))


def target_rows(world: Instance, proposal: TreeProposal, answer: Path) -> NDArray[np.float32]:
    paths = [answer]
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        paths.append((*paths[parent + 1], token))
    return np.stack([world.logits("p", path) for path in paths])


def decode(
    world: Instance, length: int, seed: int, rng: np.random.Generator | None
) -> tuple[list[int], list[tuple[TreeProposal, TreeVerdict]]]:
    """The first tokens of an answer and its rounds: trees by chance, or plain decoding."""
    draft, walker, history = TreeDraft(world.cache), Walker(), History(world.target_size)
    answer: list[int] = []
    rounds = []
    while len(answer) < length:
        count = 0
        if rng is not None:
            draft.calibrate([(rng.random() * 2, rng.random() - 0.5)] * int(rng.integers(0, 3)))
            grow(world, draft, tuple(answer), rng)
            count = int(rng.integers(0, 12))
        proposal = draft.finish(count)
        rows = target_rows(world, proposal, tuple(answer))
        verdict = walker.walk(proposal, rows, world.sampling, history, seed, len(answer))
        answer += verdict.tokens
        rounds.append((proposal, verdict))
    return answer[:length], rounds


@pytest.mark.parametrize("name", SAMPLING)
@settings(max_examples=60)
@given(st.integers(0, 2**20), st.integers(0, 2**64 - 1), st.sampled_from([1.5, 30.0]))
def test_any_tree_gives_the_tokens_of_plain_decoding(
    name: str, world_seed: int, seed: int, spread: float
) -> None:
    world = random_instance(world_seed, SAMPLING[name])
    world.spread, world.holes = spread, 0.1
    plain, rounds = decode(world, 8, seed, None)
    assert len(rounds) == 8
    assert all(verdict.origins == [Origin.FREE] for _, verdict in rounds)
    for tree in range(3):
        assert decode(world, 8, seed, np.random.default_rng(tree))[0] == plain


def test_the_trees_are_worth_testing() -> None:
    """Tokens of every origin are emitted, and often several in a round."""
    origins: Counter[Origin] = Counter()
    longest = 0
    for seed in range(60):
        world = random_instance(seed, SAMPLING["plain"])
        for _, verdict in decode(world, 8, seed, np.random.default_rng(seed))[1]:
            origins.update(verdict.origins)
            longest = max(longest, verdict.accepted)
    assert min(origins[origin] for origin in Origin) >= 15, origins
    assert longest >= 2


@pytest.mark.parametrize("name", SAMPLING)
def test_plain_decoding_takes_the_argmax_or_the_quantile(name: str) -> None:
    sampling = SAMPLING[name]
    for seed in range(20):
        world = random_instance(seed, sampling)
        answer = decode(world, 6, seed, None)[0]
        for i, token in enumerate(answer):
            context = tuple(answer[:i])
            if sampling.greedy:
                row = world.logits("p", context).copy()
                for old in set(context):
                    penalty = np.float32(sampling.repetition_penalty)
                    row[old] = row[old] / penalty if row[old] > 0 else row[old] * penalty
                assert token == int(np.argmax(row))
            else:
                ends = np.cumsum(world.p(context))
                number = uniform_at(seed, i)
                assert abs(ends - number).min() > 1e-9  # rounding decides nothing
                assert token == int(np.searchsorted(ends, number))


def test_a_position_is_distributed_as_the_target_over_seeds() -> None:
    """Fixed seeds, so that chance decides nothing: Pearson's statistic, its 99.9 % point."""
    world = random_instance(3, SAMPLING["plain"])
    rows, empty = world.logits("p", (1,))[None], TreeDraft(world.cache).finish(0)
    p = shape(rows[0], world.sampling, History(world.target_size))
    counts, draws = np.zeros(world.target_size), 20_000
    for seed in range(draws):
        history = History(world.target_size)
        verdict = Walker().walk(empty, rows, world.sampling, history, seed, 1)
        counts[verdict.tokens[0]] += 1
    assert world.target_size <= 11
    assert (((counts - draws * p) ** 2) / (draws * p)).sum() < 29.6


@settings(max_examples=300)
@given(st.integers(0, 2**20), st.integers(0, 30))
def test_a_proposal_is_a_tree_of_what_the_trie_holds(world_seed: int, count: int) -> None:
    world = random_instance(world_seed, letters="ab" if world_seed % 2 else "abc")
    rng = np.random.default_rng(world_seed)
    draft = TreeDraft(
        world.cache,
        width=int(rng.integers(1, 9)),
        floor=float(rng.choice([0.0, 0.01])),
        shorter_share=float(rng.choice([0.0, 0.1, 0.5, 1.0])),
        calibration=[(1.2, 0.3), (0.8, -0.5)][: int(rng.integers(0, 3))],
    )
    paths: dict[int, Path] = {0: ()}
    lookups: set[Path] = set()
    for _ in range(rng.integers(0, 3)):
        tokens = rng.integers(0, world.target_size, 3).tolist()
        lookups |= {tuple(tokens[: i + 1]) for i in range(3)}
        draft.add_path(tokens, float(rng.random()))
    draft.expand(0, world.logits("q", ()))
    for _ in range(rng.integers(0, 4)):
        for node, token, parent, _ in draft.frontier(4):
            paths[node] = (*paths[parent], token)
            draft.expand(node, world.logits("q", paths[node]))
    for node, token, parent, _ in draft.frontier(1000):
        paths[node] = (*paths[parent], token)
    gains = draft.gains()
    proposal = draft.finish(count)

    assert len(proposal) == min(count, len(gains))
    assert gains == sorted(gains, reverse=True)
    assert sorted(proposal.probabilities, reverse=True) == gains[:count]
    spelled = {tuple(drafts): target for target, drafts, _, _ in world.cache.ngrams()}
    children: set[tuple[int, int]] = set()
    whole: list[Path] = []
    for i, parent in enumerate(proposal.parents):
        token, drafts = proposal.tokens[i], tuple(proposal.drafts[i])
        assert -1 <= parent < i
        assert proposal.depths[i] == (proposal.depths[parent] + 1 if parent >= 0 else 0)
        assert (parent, token) not in children
        children.add((parent, token))
        above = proposal.probabilities[parent] if parent >= 0 else 1.0
        assert 0 <= proposal.probabilities[i] <= above
        assert 0 <= proposal.confidences[i] <= 1
        whole.append((*(whole[parent] if parent >= 0 else ()), token))
        if proposal.origins[i] is Origin.LOOKUP:
            assert drafts == () and proposal.draft_nodes[i] == -1
            assert whole[-1] in lookups
            continue
        surface = b"".join(world.drafter[d] or b"" for d in drafts)
        assert surface == world.target[token]
        if len(drafts) > 1:
            assert proposal.origins[i] is Origin.MERGED and spelled[drafts] == token
        else:
            assert proposal.origins[i] is Origin.DIRECT
        if proposal.draft_nodes[i] in paths:  # leaves of the trie are never open
            path = paths[proposal.draft_nodes[i]]
            assert path[len(path) - len(drafts) :] == drafts
            text = b"".join(world.target[t] or b"" for t in whole[-1])
            assert text == b"".join(world.drafter[d] or b"" for d in path)


@settings(max_examples=150)
@given(st.integers(0, 2**20))
def test_probabilities_of_children_add_up_to_their_parents(world_seed: int) -> None:
    """Uncalibrated: what is given to a branch is taken from the others."""
    world = random_instance(world_seed)
    draft = TreeDraft(world.cache, width=64, floor=0.0, shorter_share=0.25)
    paths: dict[int, Path] = {0: ()}
    draft.expand(0, world.logits("q", ()))
    for _ in range(3):
        for node, token, parent, _ in draft.frontier(1000):
            paths[node] = (*paths[parent], token)
            draft.expand(node, world.logits("q", paths[node]))
    proposal = draft.finish(10_000)
    below = np.zeros(len(proposal) + 1)
    for parent, probability in zip(proposal.parents, proposal.probabilities, strict=True):
        below[parent + 1] += probability
    assert (below <= np.array([1.0, *proposal.probabilities]) + 1e-3).all()


@settings(max_examples=200)
@given(st.integers(0, 2**20), st.integers(1, 8), st.floats(0.5, 8))
def test_the_text_is_continued_by_the_most_probable_that_the_trie_allows(
    seed: int, width: int, spread: float
) -> None:
    """In rows as wide as a vocabulary, most of whose tokens the target lacks."""
    rng = np.random.default_rng(seed)
    drafter = [b"%d," % i for i in range(700)]
    known = set(rng.permutation(700)[: rng.integers(1, 60)].tolist())
    target: list[bytes | None] = [drafter[d] for d in sorted(known)]
    cache = NgramCache(VocabularyPair(Vocabulary(drafter), Vocabulary(target)))
    row = (spread * rng.standard_normal(700)).astype(np.float32)
    row[rng.random(700) < 0.2] = -np.inf
    row[rng.random(700) < 0.2] = 1.0  # ties
    draft = TreeDraft(cache, width=width, floor=0.0)
    draft.expand(0, row)
    with np.errstate(under="ignore"):
        p = np.exp(row.astype(np.float64) - row.max())
    p /= p.sum()
    wanted = sorted((d for d in known if row[d] > -np.inf), key=lambda d: (-row[d], d))
    found = {token: probability for _, token, _, probability in draft.frontier(100)}
    assert list(found) == wanted[:width]
    for token, probability in found.items():
        assert probability == pytest.approx(p[token], rel=1e-3)


def letters(*target: bytes) -> NgramCache:
    drafter = [b"a", b"b", b"c", b"d"]
    return NgramCache(VocabularyPair(Vocabulary(drafter), Vocabulary(list(target))))


def log(*probabilities: float) -> NDArray[np.float32]:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probabilities, dtype=np.float32))


def nodes(proposal: TreeProposal) -> dict[str, float]:
    """Paths of target tokens (by number) and their probabilities."""
    names: list[str] = []
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        names.append((names[parent] + " " if parent >= 0 else "") + str(token))
    return dict(zip(names, proposal.probabilities, strict=True))


def test_a_path_that_can_be_merged_gives_both_branches() -> None:
    cache = letters(b"a", b"b", b"ab", b"c")
    cache.observe(2, [0, 1])
    draft = TreeDraft(cache)
    draft.expand(0, log(0.5, 0.3, 0.2, 0))
    assert [token for _, token, _, _ in draft.frontier(9)] == [0, 1, 2]
    draft.expand(1, log(0.1, 0.8, 0.1, 0))
    open_nodes = draft.frontier(2)
    assert [entry[:3] for entry in open_nodes] == [(4, 1, 1), (2, 1, 0)]
    assert nodes(draft.finish(20)) == pytest.approx(
        {
            "2": 0.5 * 0.8 * 0.9,
            "0": 0.5 - 0.5 * 0.8 * 0.9,  # "a", and then not what makes it "ab"
            "0 1": 0.5 * 0.8 * 0.1,
            "0 0": 0.5 * 0.1,
            "0 3": 0.5 * 0.1,
            "1": 0.3,
            "3": 0.2,
        },
        abs=1e-3,
    )


def test_a_run_that_ends_no_token_costs_no_row() -> None:
    cache = letters(b"a", b"abc")
    cache.observe(1, [0, 1, 2])
    draft = TreeDraft(cache)
    draft.expand(0, log(0.6, 0.1, 0.1, 0.2))
    draft.expand(1, log(0.1, 0.7, 0.1, 0.1))
    ab = next(node for node, token, *_ in draft.frontier(9) if token == 1)
    assert draft.gains() == pytest.approx([0.6, 0.06], abs=1e-3)  # "a", "a a"
    draft.expand(ab, log(0.1, 0.1, 0.5, 0.3))
    proposal = draft.finish(9)
    assert nodes(proposal) == pytest.approx(
        {"0": 0.6 - 0.6 * 0.7 * 0.5 * 0.9, "1": 0.6 * 0.7 * 0.5 * 0.9, "0 0": 0.06}, abs=1e-3
    )
    merged = proposal.tokens.index(1)
    assert proposal.drafts[merged] == [0, 1, 2]
    assert proposal.confidences[merged] == pytest.approx(0.6 * 0.7 * 0.5, abs=1e-3)


def test_a_longer_token_takes_from_every_shorter_way() -> None:
    """ "abc" is one token, "ab" another, and the letters: the longest takes its part first."""
    cache = letters(b"a", b"b", b"c", b"ab", b"abc")
    cache.observe(3, [0, 1])
    cache.observe(4, [0, 1, 2])
    draft = TreeDraft(cache, shorter_share=0.2)
    for node in (0, 1, 2):
        draft.expand(node, log(*(1.0 if i == node else 0.0 for i in range(4))))
    assert nodes(draft.finish(9)) == pytest.approx(
        {"4": 0.8, "3": 0.16, "3 2": 0.16, "0": 0.04, "0 1": 0.04, "0 1 2": 0.04}, abs=1e-3
    )


def test_looked_up_paths_join_what_is_drafted() -> None:
    cache = letters(b"a", b"b", b"", b"c")
    draft = TreeDraft(cache)
    draft.add_path([0, 3, 1], 0.5)
    draft.add_path([0, 0], 0.2)
    draft.expand(0, log(0.4, 0.3, 0.2, 0.1))
    assert draft.gains() == pytest.approx([0.5, 0.3, 0.25, 0.2, 0.125, 0.04], abs=1e-3)
    proposal = draft.finish(4)
    assert nodes(proposal) == pytest.approx({"0": 0.5, "0 3": 0.25, "1": 0.3, "3": 0.2}, abs=1e-3)
    origins = dict(zip(nodes(proposal), proposal.origins, strict=True))
    assert origins == {
        "0": Origin.DIRECT,  # drafted too
        "0 3": Origin.LOOKUP,
        "1": Origin.DIRECT,
        "3": Origin.DIRECT,
    }


def test_a_special_token_may_be_looked_up() -> None:
    pair = VocabularyPair(Vocabulary([b"a"]), Vocabulary([b"a", None]))
    draft = TreeDraft(NgramCache(pair))
    draft.add_path([1, 0], 1.0)
    assert nodes(draft.finish(9)) == {"1": 1.0, "1 0": 1.0}


def test_calibration_is_by_rank_and_the_last_serves_the_rest() -> None:
    draft = TreeDraft(letters(b"a", b"b", b"c", b"d"), calibration=[(2.0, 1.0), (1.0, -1.0)])
    draft.expand(0, log(0.4, 0.3, 0.2, 0.1))

    def calibrated(q: float, slope: float, offset: float) -> float:
        return float(1 / (1 + np.exp(-(slope * np.log(q / (1 - q)) + offset))))

    assert draft.gains() == pytest.approx(
        [calibrated(0.4, 2, 1), *(calibrated(q, 1, -1) for q in (0.3, 0.2, 0.1))], abs=1e-3
    )
    proposal = draft.finish(2)
    assert proposal.confidences == pytest.approx([0.4, 0.3], abs=1e-3)
    assert proposal.ranks == [0, 1]


def test_what_is_improbable_is_not_drafted() -> None:
    draft = TreeDraft(letters(b"a", b"b", b"c", b"d"), floor=0.12)
    draft.expand(0, log(0.5, 0.3, 0.15, 0.05))
    assert draft.gains() == pytest.approx([0.5, 0.3, 0.15], abs=1e-3)
    assert [token for _, token, _, _ in draft.frontier(9, 0.2)] == [0, 1]
    assert [token for _, token, _, _ in draft.frontier(1)] == [0]
    draft.expand(1, log(0.4, 0.2, 0.2, 0.2))  # only the first is 0.2 of all
    assert draft.gains()[:2] == pytest.approx([0.5, 0.3], abs=1e-3)
    assert sum(gain == pytest.approx(0.2, abs=1e-3) for gain in draft.gains()) == 1


def test_the_most_probable_path_is_a_run_of_rows() -> None:
    draft = TreeDraft(letters(b"a", b"b", b"c", b"d"))
    draft.expand(0, log(0.2, 0.5, 0.2, 0.1))
    draft.expand(draft.frontier(1)[0][0], log(0.1, 0.2, 0.6, 0.1))
    draft.expand(draft.frontier(1)[0][0], log(0.1, 0.2, 0.1, 0.6))
    proposal = draft.finish(6)
    assert proposal.tokens[:3] == [1, 2, 3]
    assert proposal.parents[:3] == [-1, 0, 1]


def test_draft_errors() -> None:
    cache = letters(b"a", b"b", b"ab", b"c")
    draft = TreeDraft(cache)
    row = log(0.25, 0.25, 0.25, 0.25)
    with pytest.raises(ValueError, match="returned 3 logits for a vocabulary of 4"):
        draft.expand(0, row[:3])
    with pytest.raises(ValueError, match="not numbers"):
        draft.expand(0, np.array([0, np.nan, 0, 0], dtype=np.float32))
    with pytest.raises(IndexError, match="no draft node 7"):
        draft.expand(7, row)
    draft.expand(0, row)
    with pytest.raises(ValueError, match="only once"):
        draft.expand(0, row)
    with pytest.raises(IndexError, match="outside the target's vocabulary"):
        draft.add_path([0, 4], 0.5)
    for probability in (-0.1, 1.1, np.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            draft.add_path([0], probability)
    cache.observe(2, [0, 1])
    with pytest.raises(ValueError, match="cache changed"):
        draft.expand(1, row)
    with pytest.raises(ValueError, match="cache changed"):
        draft.finish(3)
    draft.expand(0, row)  # the next round
    assert len(draft.finish(3)) == 3
    assert len(draft.finish(3)) == 0


def test_a_row_without_a_finite_logit_proposes_nothing() -> None:
    draft = TreeDraft(letters(b"a"))
    draft.expand(0, np.full(4, -np.inf, dtype=np.float32))
    assert draft.frontier(9) == [] and draft.gains() == []


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("width", [0, 65], "width of a tree"),
        ("floor", [-0.1, 1.1, np.nan], "floor of a tree"),
        ("shorter_share", [-0.1, 1.1, np.nan], "share of shorter tokens"),
        ("calibration", [[(-1.0, 0.0)], [(np.nan, 0.0)], [(1.0, np.inf)]], "calibration"),
    ],
)
def test_options_are_checked(name: str, values: list[object], message: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=message):
            TreeDraft(letters(b"a"), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["greedy", "plain"])
def test_a_verdict_counts_what_it_says(name: str) -> None:
    for seed in range(80):
        world = random_instance(seed, SAMPLING[name])
        for proposal, verdict in decode(world, 6, seed, np.random.default_rng(seed))[1]:
            path, origins = verdict.path, proposal.origins
            assert [proposal.tokens[i] for i in path] == verdict.tokens[:-1]
            assert [origins[i] for i in path] == verdict.origins[:-1]
            assert [proposal.parents[i] for i in path] == [-1, *path][: len(path)]
            assert verdict.proposed == len(proposal)
            assert verdict.accepted == len(path) == len(verdict.tokens) - 1
            assert verdict.accepted_drafts == sum(len(proposal.drafts[i]) for i in path)
            assert verdict.merged == origins.count(Origin.MERGED)
            assert verdict.merged_accepted == verdict.origins.count(Origin.MERGED)
            last = path[-1] if path else -1
            leaf = last not in proposal.parents
            assert verdict.origins[-1] is (Origin.FREE if leaf else Origin.CORRECTED)
            for i, judgement in enumerate(verdict.judgements):
                judged = proposal.parents[i] in (-1, *path)
                wanted = Judgement.RIGHT if i in path else Judgement.WRONG
                assert judgement is (wanted if judged else Judgement.NONE)


def test_a_round_ends_at_an_accepted_token() -> None:
    draft = TreeDraft(letters(b"a", b"b", b"c", b"d"))
    draft.add_path([0, 1, 2], 0.9)
    draft.add_path([0, 3], 0.5)
    draft.add_path([3], 0.5)
    proposal = draft.finish(9)
    assert nodes(proposal).keys() == {"0", "0 1", "0 1 2", "0 3", "3"}
    rows = np.zeros((6, 4), dtype=np.float32)
    for i, name in enumerate(["", *nodes(proposal)]):
        rows[i, {"": 0, "0": 1, "0 1": 2}.get(name, 3)] = 1
    verdict = Walker().walk(proposal, rows, SamplingParameters(), History(4), 0, 0)
    assert verdict.tokens == [0, 1, 2, 3]
    with pytest.raises(IndexError, match="token 3 is not one of the 3"):
        end_round(proposal, verdict, 3)
    end_round(proposal, verdict, 1)
    assert verdict.tokens == [0, 1] and verdict.origins == [Origin.LOOKUP] * 2
    assert verdict.path == [0] and (verdict.proposed, verdict.accepted) == (3, 1)
    judged = dict(zip(nodes(proposal), verdict.judgements, strict=True))
    assert judged == {
        "0": Judgement.RIGHT,
        "0 1": Judgement.NONE,
        "0 1 2": Judgement.NONE,
        "0 3": Judgement.WRONG,
        "3": Judgement.WRONG,
    }
    with pytest.raises(IndexError):
        end_round(proposal, verdict, 1)


@pytest.mark.parametrize("name", ["greedy, penalty", "cold, penalty"])
def test_an_error_leaves_the_history_as_it_was(name: str) -> None:
    sampling = SAMPLING[name]
    draft = TreeDraft(letters(b"a", b"b", b"c", b"d"))
    draft.add_path([2, 1], 0.9)
    proposal = draft.finish(9)
    rows = np.zeros((3, 4), dtype=np.float32)
    rows[0, 2] = rows[1, 1] = 90
    rows[2, 3] = np.nan
    history, fresh = History(4), History(4)
    with pytest.raises(ValueError, match="not numbers"):
        Walker().walk(proposal, rows, sampling, history, 0, 0)
    even = np.full((1, 4), 2.0, dtype=np.float32)
    even[0, 2] = 2.1  # with the penalty for a token that was taken another one would win
    empty = draft.finish(0)
    tokens = [Walker().walk(empty, even, sampling, h, 1, 5).tokens for h in (history, fresh)]
    assert tokens[0] == tokens[1]
    with pytest.raises(ValueError, match=r"shape \[3, 4\], not 8 values"):
        Walker().walk(proposal, rows[:2], sampling, history, 0, 0)
