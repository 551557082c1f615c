"""Reverse-mode differentiation of an ONNX graph while it is built.

Each operation of ``Tape`` adds its forward nodes at once and, if it reads anything that is to be
differentiated, remembers how the gradient of its output becomes gradients of its inputs (its
vector-Jacobian products). ``gradients`` walks these memories backwards and adds the nodes that
compute them:

    tape = Tape()
    a = tape.watch("a")                        # "a" and "x" are inputs of the graph
    loss = tape.weighted_sum(tape.matmul("x", a), "weights")
    gradient = tape.gradients(loss, [a])[a]    # the name of a float32 tensor shaped like "a"

Values are names. Only operators of the ONNX standard are used. A frozen weight is read transposed
in one direction by Gemm's ``transB``, so neither direction needs a transposed copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

# From the gradients of an operation's outputs to the gradient of one of its inputs.
Pull = Callable[..., str]

# The smallest probability whose logarithm is taken.
TINY = 1e-30


class Tape:
    """A growing graph: ``nodes`` and ``initializers``."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._constants: dict[tuple[Any, ...], str] = {}
        self._watched: set[str] = set()
        self._memories: list[tuple[Sequence[str], list[tuple[str, Pull]]]] = []

    # --- the graph -----------------------------------------------------------------------------

    def node(self, operator: str, inputs: Iterable[str], **attributes: Any) -> str:
        """Add a node with one output, which is not differentiated; return its name."""
        return self._node(operator, inputs, 1, **attributes)[0]

    def _node(
        self, operator: str, inputs: Iterable[str], outputs: int, **attributes: Any
    ) -> list[str]:
        names = [f"{operator}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(operator, list(inputs), names, **attributes))
        return names

    def initializer(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant tensor."""
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def integers(self, *values: int) -> str:
        """A constant int64 [n]."""
        return self._constant(values, np.array(values, np.int64))

    def real(self, value: float) -> str:
        """A constant float32 scalar."""
        return self._constant(("real", value), np.array(value, np.float32))

    def _constant(self, key: tuple[Any, ...], value: NDArray[Any]) -> str:
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = self.initializer(name, value)
        return self._constants[key]

    # --- differentiation -----------------------------------------------------------------------

    def watch(self, name: str) -> str:
        """Differentiate whatever depends on this input of the graph."""
        self._watched.add(name)
        return name

    def gradients(self, loss: str, names: Iterable[str]) -> dict[str, str]:
        """Add the backward pass.

        Every operation that reads a watched value must lead to ``loss``, by all its outputs.

        Args:
            loss: a scalar.
            names: watched inputs of the graph.

        Returns:
            For each name that of its gradient.
        """
        parts: dict[str, list[str]] = {loss: [self.real(1.0)]}
        for outputs, pulls in reversed(self._memories):
            incoming = [self._total(parts.pop(output)) for output in outputs]
            for name, pull in pulls:
                parts.setdefault(name, []).append(pull(*incoming))
        return {name: self._total(parts[name]) for name in names}

    def _total(self, parts: list[str]) -> str:
        return parts[0] if len(parts) == 1 else self.node("Sum", parts)

    def _remember(self, outputs: Sequence[str], *pulls: tuple[str, Pull]) -> None:
        wanted = [(name, pull) for name, pull in pulls if name in self._watched]
        if wanted:
            self._watched.update(outputs)
            self._memories.append((outputs, wanted))

    def _result(self, output: str, *pulls: tuple[str, Pull]) -> str:
        self._remember([output], *pulls)
        return output

    # --- products ------------------------------------------------------------------------------

    def linear(self, x: str, weight: str) -> str:
        """``x`` [n, in] times the transpose of a frozen ``weight`` [out, in]."""
        y = self.node("Gemm", [x, weight], transB=1)
        return self._result(y, (x, lambda g: self.node("MatMul", [g, weight])))

    def matmul(self, a: str, b: str) -> str:
        """``a`` [n, k] times ``b`` [k, m]."""
        return self._result(
            self.node("MatMul", [a, b]),
            (a, lambda g: self.node("Gemm", [g, b], transB=1)),
            (b, lambda g: self.node("Gemm", [a, g], transA=1)),
        )

    def batch_matmul(self, a: str, b: str, *, transpose_b: bool = False) -> str:
        """``a`` [h, n, k] times ``b`` [h, k, m], or times the transpose of ``b`` [h, m, k]."""

        def flip(x: str) -> str:
            return self.node("Transpose", [x], perm=[0, 2, 1])

        if transpose_b:
            return self._result(
                self.node("MatMul", [a, flip(b)]),
                (a, lambda g: self.node("MatMul", [g, b])),
                (b, lambda g: self.node("MatMul", [flip(g), a])),
            )
        return self._result(
            self.node("MatMul", [a, b]),
            (a, lambda g: self.node("MatMul", [g, flip(b)])),
            (b, lambda g: self.node("MatMul", [flip(a), g])),
        )

    # --- element by element --------------------------------------------------------------------
    # What is watched has the output's shape; what is not may be broadcast.

    def add(self, a: str, b: str) -> str:
        return self._result(self.node("Add", [a, b]), (a, lambda g: g), (b, lambda g: g))

    def subtract(self, a: str, b: str) -> str:
        return self._result(
            self.node("Sub", [a, b]), (a, lambda g: g), (b, lambda g: self.node("Neg", [g]))
        )

    def multiply(self, a: str, b: str) -> str:
        return self._result(
            self.node("Mul", [a, b]),
            (a, lambda g: self.node("Mul", [g, b])),
            (b, lambda g: self.node("Mul", [g, a])),
        )

    def exp(self, x: str) -> str:
        y = self.node("Exp", [x])
        return self._result(y, (x, lambda g: self.node("Mul", [g, y])))

    def log(self, x: str) -> str:
        return self._result(self.node("Log", [x]), (x, lambda g: self.node("Div", [g, x])))

    def at_least(self, x: str, bound: float) -> str:
        """max(x, bound)."""

        def pull(g: str) -> str:
            above = self.node("Greater", [x, self.real(bound)])
            return self.node("Where", [above, g, self.real(0.0)])

        return self._result(self.node("Max", [x, self.real(bound)]), (x, pull))

    def complement(self, x: str) -> str:
        """1 − eˣ of x ≤ 0, to float32's relative precision where eˣ is near 1 too.

        With t = tanh(−x / 2) it is 2t / (1 + t), where nothing cancels.
        """
        t = self.node("Tanh", [self.node("Mul", [x, self.real(-0.5)])])
        y = self.node("Div", [self.node("Add", [t, t]), self.node("Add", [t, self.real(1.0)])])

        def pull(g: str) -> str:
            return self.node("Neg", [self.node("Mul", [g, self.node("Exp", [x])])])

        return self._result(y, (x, pull))

    def silu(self, x: str) -> str:
        """x · σ(x)."""
        sigmoid = self.node("Sigmoid", [x])
        y = self.node("Mul", [x, sigmoid])

        def pull(g: str) -> str:
            # σ + y (1 − σ)
            slope = self.node("Sub", [self.real(1.0), sigmoid])
            slope = self.node("Add", [sigmoid, self.node("Mul", [y, slope])])
            return self.node("Mul", [g, slope])

        return self._result(y, (x, pull))

    # --- along the last axis -------------------------------------------------------------------

    def norm(self, x: str, weight: str, epsilon: float) -> str:
        """x / sqrt(mean(x²) + ε) · weight, the weight frozen."""
        last = self.integers(-1)

        def mean(a: str, b: str) -> str:
            return self.node("ReduceMean", [self.node("Mul", [a, b]), last])

        root = self.node("Sqrt", [self.node("Add", [mean(x, x), self.real(epsilon)])])
        normed = self.node("Div", [x, root])

        def pull(g: str) -> str:
            g = self.node("Mul", [g, weight])
            along = self.node("Mul", [normed, mean(g, normed)])
            return self.node("Div", [self.node("Sub", [g, along]), root])

        return self._result(self.node("Mul", [normed, weight]), (x, pull))

    def softmax(self, x: str) -> str:
        y = self.node("Softmax", [x], axis=-1)

        def pull(g: str) -> str:
            weighted = self.node("Mul", [g, y])
            total = self.node("ReduceSum", [weighted, self.integers(-1)])
            return self.node("Sub", [weighted, self.node("Mul", [y, total])])

        return self._result(y, (x, pull))

    def rotate(self, x: str, cosine: str, sine: str) -> str:
        """RoFormer's rotation (arXiv 2104.09864), halves rotated as in Hugging Face's Llama."""

        def turn(value: str, operators: tuple[str, str]) -> str:
            first, second = self._node("Split", [value], 2, axis=-1, num_outputs=2)

            def part(operator: str, a: str, b: str) -> str:
                products = [self.node("Mul", [a, cosine]), self.node("Mul", [b, sine])]
                return self.node(operator, products)

            parts = [part(operators[0], first, second), part(operators[1], second, first)]
            return self.node("Concat", parts, axis=-1)

        # A rotation's transpose turns the other way.
        return self._result(turn(x, ("Sub", "Add")), (x, lambda g: turn(g, ("Add", "Sub"))))

    def log_probabilities(self, logits: str, ids: str, included: str) -> tuple[str, str]:
        """Logarithms of some of the softmax's probabilities, and of the mass of a set of tokens.

        The only operation on the whole vocabulary, so written out to hold few tensors of its size.

        Args:
            logits: float32 [n, vocab].
            ids: int64 [n, k]; a row may name a token twice.
            included: float32 [1, vocab], 1 for the tokens of the set, 0 for others.

        Returns:
            Float32 [n, k] and [n, 1].
        """
        log_q = self.node("LogSoftmax", [logits], axis=-1)
        picked = self.node("GatherElements", [log_q, ids], axis=1)
        q = self.node("Exp", [log_q])
        mass = self.node("Gemm", [q, included], transB=1)
        mass = self.node("Max", [mass, self.real(TINY)])

        def pull(g: str, g_mass: str) -> str:
            # d log q_i = d z_i − Σ_v q_v d z_v;  d log mass = Σ_v (included_v / mass − 1) q_v d z_v
            total = self.node("Add", [self.node("ReduceSum", [g, self.integers(1)]), g_mass])
            share = self.node("Div", [g_mass, mass])
            slope = self.node("Gemm", [share, included, total], beta=-1.0)
            slope = self.node("Mul", [slope, q])
            return self.node("ScatterElements", [slope, ids, g], axis=1, reduction="add")

        outputs = (picked, self.node("Log", [mass]))
        self._remember(outputs, (logits, pull))
        return outputs

    # --- shapes and sums -----------------------------------------------------------------------

    def reshape(self, x: str, shape: Sequence[int], back: Sequence[int]) -> str:
        """As ``Reshape`` (0 keeps a dimension, −1 is found out); ``back`` undoes it."""
        y = self.node("Reshape", [x, self.integers(*shape)])
        return self._result(y, (x, lambda g: self.node("Reshape", [g, self.integers(*back)])))

    def transpose(self, x: str, *axes: int) -> str:
        y = self.node("Transpose", [x], perm=axes)
        back = [int(axis) for axis in np.argsort(axes)]
        return self._result(y, (x, lambda g: self.node("Transpose", [g], perm=back)))

    def split(self, x: str, sizes: str, axis: int) -> tuple[str, str]:
        """Cut in two; ``sizes`` is an int64 [2]."""
        first, second = self._node("Split", [x, sizes], 2, axis=axis)
        self._remember((first, second), (x, lambda *g: self.node("Concat", g, axis=axis)))
        return first, second

    def rows(self, x: str, index: str) -> str:
        """Rows of ``x`` [n, m] by number, int64 [r]; a row may be read twice."""

        def pull(g: str) -> str:
            column = self.node("Unsqueeze", [index, self.integers(1)])
            index_of_each = self.node("Expand", [column, self.node("Shape", [g])])
            zeros = self.node("ConstantOfShape", [self.node("Shape", [x])])
            scattered = [zeros, index_of_each, g]
            return self.node("ScatterElements", scattered, axis=0, reduction="add")

        return self._result(self.node("Gather", [x, index]), (x, pull))

    def spread(self, column: str, like: str) -> str:
        """Repeat ``column`` [n, 1] to the shape of ``like`` [n, m]."""
        y = self.node("Expand", [column, self.node("Shape", [like])])
        return self._result(y, (column, lambda g: self.node("ReduceSum", [g, self.integers(1)])))

    def sum_rows(self, x: str) -> str:
        """[n, m] → [n, 1]."""
        y = self.node("ReduceSum", [x, self.integers(1)])
        return self._result(y, (x, lambda g: self.node("Expand", [g, self.node("Shape", [x])])))

    def weighted_sum(self, x: str, weights: str) -> str:
        """A scalar; the weights, not differentiated, have the shape of ``x``."""
        y = self.node("ReduceSum", [self.node("Mul", [x, weights])], keepdims=0)
        return self._result(y, (x, lambda g: self.node("Mul", [weights, g])))
