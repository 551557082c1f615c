"""Opening an ONNX graph on the CPU."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime as ort

from omnidraft import _native
from omnidraft.runtime.engines.failures import cannot_load
from omnidraft.runtime.errors import OmniDraftError

# As in pyproject.toml: kernels_native/ is not tested with older ones.
OLDEST_ONNXRUNTIME = (1, 32)


def register_operators(options: ort.SessionOptions) -> None:
    """Let a graph use the operators of ``kernels_native``.

    Raises:
        OmniDraftError: an ONNX Runtime that is too old, or that refuses the operators.
    """
    found = re.match(r"(\d+)\.(\d+)", ort.__version__)
    if not found or tuple(map(int, found.groups())) < OLDEST_ONNXRUNTIME:
        oldest = ".".join(map(str, OLDEST_ONNXRUNTIME))
        raise OmniDraftError(
            f"ONNX Runtime {ort.__version__} is installed, and OmniDraft's operators need "
            f"{oldest} or later: pip install 'onnxruntime>={oldest}'"
        )
    try:
        options.register_custom_ops_library(_native.__file__)
    except Exception as error:  # ONNX Runtime's errors share no narrower base class.
        raise OmniDraftError(
            f"ONNX Runtime {ort.__version__} refuses OmniDraft's operators: {error}. Install both "
            "anew: pip install --force-reinstall omnidraft onnxruntime"
        ) from error


def pass_options(threads: int) -> ort.SessionOptions:
    """What a session that computes passes of a model is opened with.

    Its threads spin between the operators of a pass, and sleep once it has ended: they would take
    the cores of the other model's threads, as target and drafter take turns.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def cpu_session(graph: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """Load a graph, which may use the operators of ``kernels_native``.

    Raises:
        DamagedFileError: ONNX Runtime refuses it.
        OmniDraftError: memory is short, its weights lie behind a symbolic link that ONNX Runtime
            does not follow, or the installed ONNX Runtime is too old.
    """
    register_operators(options)
    try:
        return ort.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        # It takes links into one other folder for all files, as in the Hugging Face cache.
        if "escapes model directory" in str(error):
            raise OmniDraftError(
                f"The weights of {graph} lie behind a symbolic link into a folder where the graph "
                "is not, and ONNX Runtime follows none of these. Copy the folder with the files "
                f"themselves: cp -rL {graph.parent} COPY"
            ) from error
        raise cannot_load(graph, error) from error
