"""Blocks of GGUF's quantized types taken apart: codes, scales and offsets, no value changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


class Form(IntEnum):
    """How weights are made of codes: see kernels_native/src/block_linear.h."""

    AFFINE4 = 0
    SCALED4 = 1
    SUPER4 = 2
    SCALED8 = 3
    AFFINE8 = 4
    SUPER8 = 5
    SIXTEEN8 = 6


@dataclass(frozen=True)
class Blocks:
    """Rows of a matrix in blocks of 32; weight = scale * code + offset."""

    form: Form
    codes: NDArray[np.int8]
    """[rows, blocks, 32]; those of 4 bits as they are held, from 0 to 15."""
    factors: NDArray[np.float16] | NDArray[np.int8]
    """[rows, blocks, n]: one scale, in SIXTEEN8 two, then an offset if the form has one."""
    units: NDArray[np.float16] | None = None
    """[rows, blocks / 8, n] where factors are integers: what scales and offsets are times."""


@runtime_checkable
class HoldsBlocks(Protocol):
    """A ``Checkpoint`` that knows how its matrices are stored; names as there."""

    def kind(self, name: str) -> str:
        """The name of a matrix's type in GGUF, say ``Q4_K`` or ``F16``."""

    def height(self, name: str) -> int:
        """How many rows it has."""

    def blocks(self, name: str, start: int, stop: int) -> Blocks:
        """Rows ``start:stop`` of a matrix of a type of ``TAKEN``.

        Raises:
            DamagedFileError: the tensor cannot be read, or holds NaN or infinity.
        """


def taken_apart(kind: str, rows: Bytes) -> Blocks:
    """The blocks of rows of a type of ``TAKEN``, uint8 [rows, bytes of a row]."""
    _, size, take = TAKEN[kind]
    return take(rows.reshape(len(rows), -1, size))


def _halves(stored: Bytes) -> NDArray[np.float16]:
    return np.ascontiguousarray(stored).view("<f2")


def _nibbles(stored: Bytes) -> Bytes:
    """The lower halves of all bytes, then the upper ones."""
    return np.concatenate([stored & 15, stored >> 4], axis=-1)


def _q4_0(stored: Bytes) -> Blocks:
    codes = _nibbles(stored[..., 2:]).view(np.int8)
    return Blocks(Form.SCALED4, codes, _halves(stored[..., :2]))


def _q4_1(stored: Bytes) -> Blocks:
    codes = _nibbles(stored[..., 4:]).view(np.int8)
    return Blocks(Form.AFFINE4, codes, _halves(stored[..., :4]))


def _five_bits(high: Bytes, low: Bytes) -> NDArray[np.int8]:
    bits = np.unpackbits(high, axis=-1, bitorder="little")
    codes: NDArray[np.int8] = (_nibbles(low) | (bits << 4)).view(np.int8)
    return codes


def _q5_0(stored: Bytes) -> Blocks:
    codes = _five_bits(stored[..., 2:6], stored[..., 6:]) - np.int8(16)
    return Blocks(Form.SCALED8, codes, _halves(stored[..., :2]))


def _q5_1(stored: Bytes) -> Blocks:
    codes = _five_bits(stored[..., 4:8], stored[..., 8:])
    return Blocks(Form.AFFINE8, codes, _halves(stored[..., :4]))


def _q8_0(stored: Bytes) -> Blocks:
    codes = np.ascontiguousarray(stored[..., 2:]).view(np.int8)
    return Blocks(Form.SCALED8, codes, _halves(stored[..., :2]))


def _super_factors(stored: Bytes) -> NDArray[np.int8]:
    """Scales and offsets of eight blocks, six bits each in twelve bytes: [..., 8, 2]."""
    scales, offsets, both = np.split(stored, 3, axis=-1)
    low = np.stack([scales & 63, offsets & 63], axis=-1)
    high = np.stack([both & 15 | scales >> 6 << 4, both >> 4 | offsets >> 6 << 4], axis=-1)
    return np.concatenate([low, high], axis=-2).view(np.int8)


def _super_units(stored: Bytes) -> NDArray[np.float16]:
    """A type of this kind subtracts its offsets."""
    return _halves(stored) * np.array([1, -1], np.float16)


def _in_super_blocks(form: Form, stored: Bytes, codes: Bytes) -> Blocks:
    """With ``codes`` [rows, groups, 8, 32]; units and factors come first in a group's bytes."""
    rows = len(stored)
    factors = _super_factors(stored[..., 4:16])
    return Blocks(
        form,
        codes.reshape(rows, -1, 32).view(np.int8),
        factors.reshape(rows, -1, 2),
        _super_units(stored[..., :4]),
    )


def _paired_nibbles(stored: Bytes) -> Bytes:
    """Of each 32 bytes the lower halves, then the upper ones: [..., 8, 32]."""
    pairs = _nibbles(stored.reshape(*stored.shape[:-1], 4, 32))
    return pairs.reshape(*stored.shape[:-1], 8, 32)


def _q4_k(stored: Bytes) -> Blocks:
    return _in_super_blocks(Form.SUPER4, stored, _paired_nibbles(stored[..., 16:]))


def _q5_k(stored: Bytes) -> Blocks:
    place = np.arange(8, dtype=np.uint8)[:, None]
    fifth = (stored[..., None, 16:48] >> place & 1) << np.uint8(4)
    codes = np.bitwise_or(_paired_nibbles(stored[..., 48:]), fifth, dtype=np.uint8)
    return _in_super_blocks(Form.SUPER8, stored, codes)


def _q6_k(stored: Bytes) -> Blocks:
    rows, groups = stored.shape[:2]
    # Each 64 bytes hold the lower four bits of 128 codes, each 32 bytes their upper two.
    low = _nibbles(stored[..., :128].reshape(rows, groups, 2, 64)).reshape(rows, groups, 2, 4, 32)
    place = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (stored[..., 128:192].reshape(rows, groups, 2, 1, 32) >> place) & 3
    codes = (low | high << 4).reshape(rows, -1, 32).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(stored[..., 192:208]).view(np.int8).reshape(rows, -1, 2)
    return Blocks(Form.SIXTEEN8, codes, scales, _halves(stored[..., 208:]))


TAKEN: Mapping[str, tuple[Form, int, Callable[[Bytes], Blocks]]] = {
    "Q4_0": (Form.SCALED4, 18, _q4_0),
    "Q4_1": (Form.AFFINE4, 20, _q4_1),
    "Q5_0": (Form.SCALED8, 22, _q5_0),
    "Q5_1": (Form.AFFINE8, 24, _q5_1),
    "Q8_0": (Form.SCALED8, 34, _q8_0),
    "Q4_K": (Form.SUPER4, 144, _q4_k),
    "Q5_K": (Form.SUPER8, 176, _q5_k),
    "Q6_K": (Form.SIXTEEN8, 210, _q6_k),
}
"""The types that are taken over as they are: the form they get, the bytes of what they are counted
in, and what takes those apart."""
