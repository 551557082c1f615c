"""OmniDraft: one small draft model makes any local language model answer faster, losslessly.

import omnidraft

session = omnidraft.load("smollm2-135m")
for piece in session.stream("Why is the sky blue?"):
    print(piece.text, end="", flush=True)
"""

from omnidraft._native import Origin, SamplingParameters, Verification
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models import DEFAULT_DRAFTER, load_model
from omnidraft.runtime.session import Answer, GenerationOptions, Piece, Session
from omnidraft.runtime.statistics import Statistics

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "GenerationOptions",
    "OmniDraftError",
    "Origin",
    "Piece",
    "SamplingParameters",
    "Session",
    "Statistics",
    "Verification",
    "load",
]


def load(target: str, drafter: str | None = DEFAULT_DRAFTER) -> Session:
    """Open a target and a drafter by name, folder, GGUF file or Hugging Face id.

    Models are fetched and converted at first use. ``drafter=None`` decodes plainly.

    Raises:
        OmniDraftError: a model cannot be found, fetched or read; the message says what to do.
    """
    return Session(load_model(target), load_model(drafter) if drafter else None)
