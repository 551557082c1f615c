"""Commands that measure; see README.md."""

import os

# Before any of them imports ONNX Runtime, whose telemetry is read once: see ``omnidraft``, which
# an environment of a peer need not have.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
