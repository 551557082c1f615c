"""Opening an ONNX graph on the CPU."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from omnidraft import _native
from omnidraft.runtime.errors import DamagedFileError, OmniDraftError


def cpu_session(graph: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """Load a graph, which may use the operators of ``kernels_native``.

    Raises:
        DamagedFileError: ONNX Runtime refuses it.
        OmniDraftError: its weights lie behind a symbolic link that ONNX Runtime does not follow.
    """
    options.register_custom_ops_library(_native.__file__)
    try:
        return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's errors share no narrower base class.
        # It takes links into one other folder for all files, as in the Hugging Face cache.
        if "escapes model directory" in str(error):
            raise OmniDraftError(
                f"The weights of {graph} lie behind a symbolic link into a folder where the graph "
                "is not, and ONNX Runtime follows none of these. Copy the folder with the files "
                f"themselves: cp -rL {graph.parent} COPY"
            ) from error
        raise DamagedFileError(f"{graph} cannot be loaded: {error}") from error
