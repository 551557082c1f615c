"""Sampling parameters against a plain reference, and the random stream against its algorithm."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from omnidraft._native import (
    Generator,
    History,
    SamplingParameters,
    quantile,
    shape,
    uniform_at,
)

Row = NDArray[np.float64]


def softmax(scores: Row) -> Row:
    weights = np.exp(scores - scores.max())
    return np.asarray(weights / weights.sum())


def reference(logits: NDArray[np.float32], seen: set[int], s: SamplingParameters) -> Row:
    """As Hugging Face transformers does, except that ties with what stays, stay."""
    scores = logits.astype(np.float64)
    for token in seen:
        scores[token] *= s.repetition_penalty if scores[token] <= 0 else 1 / s.repetition_penalty
    scores /= s.temperature
    if s.top_k:
        scores[scores < np.sort(scores)[::-1][: s.top_k][-1]] = -np.inf
    if s.top_p < 1:
        p = np.sort(softmax(scores))[::-1]
        last = int(np.searchsorted(np.cumsum(p), s.top_p))
        scores[softmax(scores) < p[min(last, len(p) - 1)]] = -np.inf
    if s.min_p:
        p = softmax(scores)
        scores[p < s.min_p * p.max()] = -np.inf
    return softmax(scores)


# Multiples of 1/8: ties are common, near-ties are not.
rows = hnp.arrays(
    np.float32, st.integers(1, 200), elements=st.integers(-80, 80).map(lambda i: i / 8)
)


@settings(max_examples=400)
@given(
    rows,
    st.sets(st.integers(0, 199), max_size=20),
    st.sampled_from([0.25, 0.5, 1.0, 2.0]),
    st.sampled_from([0, 1, 2, 3, 17, 100, 500]),
    st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-6]),
    st.sampled_from([0.0, 0.0123, 0.3, 1.0]),
    st.sampled_from([1.0, 2.0, 0.5]),
)
def test_shape_is_the_reference(
    logits: NDArray[np.float32],
    seen: set[int],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
) -> None:
    sampling = SamplingParameters(temperature, top_k, top_p, min_p, penalty)
    seen = {token for token in seen if token < len(logits)}
    history = History(len(logits))
    history.add(sorted(seen))
    p = shape(logits, sampling, history)
    assert p.dtype == np.float64 and p.shape == logits.shape
    assert abs(p.sum() - 1) < 1e-12 and (p >= 0).all()
    wanted = reference(logits, seen, sampling)
    if top_p < 1 and not np.array_equal(p > 0, wanted > 0):
        # Only where the mass reaches top-p to within rounding may one more or one less stay.
        kept = min(p[p > 0].min(), wanted[wanted > 0].min())
        loose = SamplingParameters(temperature, top_k, 1.0, 0.0, penalty)
        full = reference(logits, seen, loose)
        masses = np.cumsum(np.sort(full)[::-1])
        assert kept > 0 and np.abs(masses - top_p).min() < 1e-5
        return
    np.testing.assert_array_equal(p > 1e-37, wanted > 1e-37)
    likely = wanted > 1e-37
    exponents = np.log(wanted[likely] / wanted.max())
    np.testing.assert_array_less(np.abs(p[likely] / wanted[likely] - 1), 1e-6 * (1 - exponents))


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 5000), st.floats(0.05, 0.999), st.floats(0.2, 20))
def test_top_p_keeps_the_smallest_set(seed: int, size: int, top_p: float, spread: float) -> None:
    logits = (np.random.default_rng(seed).standard_normal(size) * spread).astype(np.float32)
    full = shape(logits, SamplingParameters(temperature=1.0), History(size))
    p = shape(logits, SamplingParameters(temperature=1.0, top_p=top_p), History(size))
    kept = p > 0
    least = full[kept].min()
    assert full[kept].sum() >= top_p * (1 - 1e-9)
    assert full[full > least].sum() < top_p * (1 + 1e-9)
    np.testing.assert_array_equal(kept, full >= least)
    np.testing.assert_allclose(p[kept], full[kept] / full[kept].sum(), rtol=1e-9)


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 3000), st.integers(1, 3000))
def test_top_k_keeps_k(seed: int, size: int, top_k: int) -> None:
    logits = (np.random.default_rng(seed).permutation(size) / 100).astype(np.float32)
    p = shape(logits, SamplingParameters(temperature=1.0, top_k=top_k), History(size))
    np.testing.assert_array_equal(p > 0, logits >= np.sort(logits)[::-1][min(top_k, size) - 1])


def test_weights_are_accurate_over_their_range() -> None:
    logits = np.linspace(-86, 0, 100_001, dtype=np.float32)
    p = shape(logits, SamplingParameters(temperature=1.0), History(len(logits)))
    wanted = np.exp(logits.astype(np.float64))
    np.testing.assert_array_less(abs(p / p[-1] / wanted - 1), 2e-7 * (1 - logits))


def test_the_same_bits_wherever_a_row_lies() -> None:
    """No result may depend on the alignment of the row in memory."""
    rng = np.random.default_rng(0)
    row = rng.standard_normal(1003).astype(np.float32)
    sampling = SamplingParameters(temperature=0.7, top_p=0.9)
    wanted = shape(row, sampling, History(1003))
    for offset in range(1, 17):
        moved = np.zeros(1003 + 17, dtype=np.float32)[offset : offset + 1003]
        moved[:] = row
        np.testing.assert_array_equal(shape(moved, sampling, History(1003)), wanted)


@pytest.mark.parametrize("temperature", [1e-6, 1e-39, 1e-300, 1e-320])
def test_the_coldest_temperatures_are_argmax(temperature: float) -> None:
    logits = np.array([1.0, 2.0, 1.5, 2.0, -np.inf], dtype=np.float32)
    p = shape(logits, SamplingParameters(temperature=temperature), History(5))
    np.testing.assert_array_equal(p, [0, 0.5, 0, 0.5, 0])


def test_extreme_logits() -> None:
    sampling = SamplingParameters(temperature=1.0)
    logits = np.array([-np.inf, -3e38, 3e38, -np.inf], dtype=np.float32)
    np.testing.assert_array_equal(shape(logits, sampling, History(4)), [0, 0, 1, 0])
    logits = np.full(5, -3e38, dtype=np.float32)
    np.testing.assert_array_equal(shape(logits, sampling, History(5)), [0.2] * 5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("size", [1, 15, 16, 17, 1024, 1025, 3000])
def test_what_is_no_number_is_an_error(bad: float, size: int) -> None:
    for at in {0, size // 2, size - 1}:
        logits = np.zeros(size, dtype=np.float32)
        logits[at] = bad
        with pytest.raises(ValueError, match="not numbers"):
            shape(logits, SamplingParameters(temperature=1.0), History(size))


def test_other_errors() -> None:
    sampling = SamplingParameters(temperature=1.0)
    with pytest.raises(ValueError, match="no finite logit"):
        shape(np.full(3, -np.inf, dtype=np.float32), sampling, History(3))
    with pytest.raises(ValueError, match="vocabulary of 4"):
        shape(np.zeros(3, dtype=np.float32), sampling, History(4))
    with pytest.raises(ValueError, match="greedy"):
        shape(np.zeros(3, dtype=np.float32), SamplingParameters(), History(3))
    with pytest.raises(TypeError):
        shape(np.zeros(3), sampling, History(3))  # type: ignore[arg-type]
    for token in (-1, 3):
        with pytest.raises(IndexError, match="outside the vocabulary of 3"):
            History(3).add([token])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("temperature", [-0.1, 101, np.nan, np.inf], "temperature must be between 0 and 100"),
        ("top_k", [-1], "top-k must be 0"),
        ("top_p", [0.0, -1, 1.01, np.nan], "top-p must be above 0 and at most 1"),
        ("min_p", [-0.1, 1.1, np.nan], "min-p must be between 0 and 1"),
        (
            "repetition_penalty",
            [0.0, 1e-300, -1, 101, np.nan],
            "repetition-penalty must be between 0.01 and 100",
        ),
    ],
)
def test_parameters_are_checked(name: str, values: list[float], message: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=message):
            SamplingParameters(**{name: value})  # type: ignore[arg-type]


def test_parameters_are_kept() -> None:
    sampling = SamplingParameters(0.5, 40, 0.9, 0.1, 1.1)
    assert not sampling.greedy and SamplingParameters().greedy
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 40, 0.9)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)


MASK = 2**64 - 1


def splitmix(seed: int, count: int) -> int:
    """Output ``count``, from 0, of SplitMix64 as its authors describe it."""
    z = (seed + (count + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def xoshiro(seed: int) -> Iterator[int]:
    """xoshiro256** as its authors describe it (Blackman, Vigna), seeded through SplitMix64."""

    def rotate(x: int, k: int) -> int:
        return (x << k | x >> (64 - k)) & MASK

    state = [splitmix(seed, i) for i in range(4)]
    while True:
        yield rotate(state[1] * 5 & MASK, 7) * 9 & MASK
        t = state[1] << 17 & MASK
        state[2] ^= state[0]
        state[3] ^= state[1]
        state[1] ^= state[2]
        state[0] ^= state[3]
        state[2] ^= t
        state[3] = rotate(state[3], 45)


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1])
def test_the_stream_is_its_algorithms(seed: int) -> None:
    generator, other = Generator(seed), xoshiro(seed)
    assert [generator.next() for _ in range(1000)] == [next(other) for _ in range(1000)]
    assert [generator.uniform() for _ in range(100)] == [
        (next(other) >> 11) / 2**53 for _ in range(100)
    ]


def test_the_stream_is_the_same_everywhere() -> None:
    generator = Generator(42)
    assert [generator.next() for _ in range(4)] == [
        0x15780B2E0C2EC716,
        0x6104D9866D113A7E,
        0xAE17533239E499A1,
        0xECB8AD4703B360A1,
    ]


@given(st.integers(0, MASK), st.integers(0, MASK))
def test_a_place_has_its_own_number(seed: int, position: int) -> None:
    number = uniform_at(seed, position)
    assert number == (splitmix(splitmix(seed, 0), position) >> 11) / 2**53
    assert 0 <= number < 1


def test_numbers_of_places_are_the_recorded_ones() -> None:
    lines = (Path(__file__).parent / "vectors" / "uniform.txt").read_text().splitlines()[1:]
    assert len(lines) == 49
    for line in lines:
        seed, position, number = map(int, line.split())
        assert uniform_at(seed, position) * 2**53 == number


@pytest.mark.parametrize("bad", [-1, 2**64])
def test_places_are_64_bit_numbers(bad: int) -> None:
    for place in ((bad, 0), (0, bad)):
        with pytest.raises(TypeError):
            uniform_at(*place)


@pytest.mark.parametrize("sampling", [SamplingParameters(0.7), SamplingParameters(1.5, 7, 0.9)])
def test_quantiles_are_in_proportion(sampling: SamplingParameters) -> None:
    """On an even grid of numbers each token is met as often as it is probable."""
    logits = np.random.default_rng(1).standard_normal(40).astype(np.float32)
    history, grid = History(40), 20_000
    found = [quantile(logits, sampling, history, (i + 0.5) / grid) for i in range(grid)]
    assert found == sorted(found)
    counts = np.bincount(found, minlength=40)
    np.testing.assert_array_less(abs(counts - grid * shape(logits, sampling, history)), 1 + 1e-6)


def test_quantiles_are_checked() -> None:
    logits, sampling = np.zeros(3, dtype=np.float32), SamplingParameters(1.0)
    for outside in (-0.1, 1.0, np.nan):
        with pytest.raises(ValueError, match="in \\[0, 1\\)"):
            quantile(logits, sampling, History(3), outside)
    with pytest.raises(ValueError, match="greedy"):
        quantile(logits, SamplingParameters(), History(3), 0.5)


def test_draws_are_in_proportion() -> None:
    generator = Generator(7)
    weights = [0.0, 1.0, 0.0, 3.0, 0.0]
    counts = np.bincount([generator.draw(weights) for _ in range(20_000)], minlength=5)
    assert counts[[0, 2, 4]].sum() == 0
    assert abs(counts[1] / 20_000 - 0.25) < 0.015  # 5 standard deviations
    for nothing in ([], [0.0, 0.0], [float("nan")]):
        with pytest.raises(ValueError, match="nothing to draw"):
            generator.draw(nothing)
