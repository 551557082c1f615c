"""Build an ONNX graph node by node, its weights in a file beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import DTypeLike, NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from omnidraft.runtime.errors import DamagedFileError

Progress = Callable[[str, int, int], None]
GRAPH_FILE = "model.onnx"
WEIGHTS_FILE = "model.onnx.data"
CONTRIB = "com.microsoft"
OWN = "omnidraft"  # the domain of kernels_native's operators
# ORT may map the weights file into memory: tensors start at a page.
ALIGNMENT = 4096
# Bytes of zeros that are written at a time.
CHUNK = 1 << 22


class GraphWriter:
    """Nodes and initializers of a graph that grows; large tensors go to ``file``."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.constants: dict[tuple[int, ...], str] = {}

    def node(
        self,
        operator: str,
        inputs: Iterable[str],
        outputs: int | list[str] = 1,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Add a node; return its output's name, or the list of them if there are several."""
        if isinstance(outputs, int):
            outputs = [f"{operator}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(operator, list(inputs), outputs, domain=domain, **attributes)
        )
        return outputs[0] if len(outputs) == 1 else outputs

    def integers(self, *values: int) -> str:
        if values not in self.constants:
            name = "integers_" + "_".join(str(value) for value in values).replace("-", "m")
            tensor = numpy_helper.from_array(np.array(values, dtype=np.int64), name)
            self.initializers.append(tensor)
            self.constants[values] = name
        return self.constants[values]

    def real(self, value: float) -> str:
        return self.constant(f"real_{value}", np.array(value, dtype=np.float32))

    def constant(self, name: str, value: NDArray[Any]) -> str:
        if all(tensor.name != name for tensor in self.initializers):
            self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def store(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, blocks: Iterable[NDArray[Any]]
    ) -> str:
        """Append a tensor to the weights file, block by block."""
        self.file.write(bytes(-self.file.tell() % ALIGNMENT))
        offset = self.file.tell()
        for block in blocks:
            self.file.write(np.ascontiguousarray(block, dtype=dtype).data)
        length = self.file.tell() - offset
        if length != int(np.prod(shape)) * np.dtype(dtype).itemsize:
            raise DamagedFileError(f"Tensor {name} of the checkpoint is not of shape {shape}.")
        return self.external(name, shape, dtype, offset, length)

    def reserve(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike
    ) -> tuple[str, np.memmap[Any, Any]]:
        """Append room for a tensor to the weights file; return it as mapped memory to be filled."""
        self.file.write(bytes(-self.file.tell() % ALIGNMENT))
        offset = self.file.tell()
        length = int(np.prod(shape)) * np.dtype(dtype).itemsize
        # Written, not only reserved: a full disk must be an error here, not a fault later on.
        for begin in range(0, length, CHUNK):
            self.file.write(bytes(min(CHUNK, length - begin)))
        self.file.flush()
        mapped = np.memmap(self.file.name, dtype, "r+", offset, shape)
        return self.external(name, shape, dtype, offset, length), mapped

    def external(
        self, name: str, shape: tuple[int, ...], dtype: DTypeLike, offset: int, length: int
    ) -> str:
        tensor = TensorProto(
            name=name,
            dims=shape,
            data_type=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
            data_location=TensorProto.EXTERNAL,
        )
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        return name
