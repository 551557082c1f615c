"""Where text comes from: a sampler for each kind of teacher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from omnidraft.distill.config import Config, LocalTeacher, Teacher, TextTeacher
from omnidraft.distill.sampling.openings import Openings
from omnidraft.distill.shards import Document


class Sampler(Protocol):
    """Writes documents."""

    @property
    def surfaces(self) -> list[bytes | None]:
        """The bytes of each token of the documents so far; None: a control token."""

    def documents(self, seed: int) -> Iterator[Document]:
        """Documents, as many as are taken; of text that is there, each once.

        Args:
            seed: another one gives other documents.

        Raises:
            OmniDraftError: the teacher fails.
        """


def open_sampler(teacher: Teacher, config: Config, folder: Path, prompts: Sequence[str]) -> Sampler:
    """The sampler of a teacher.

    Args:
        folder: that names in the configuration are relative to.
        prompts: see ``read_prompts``.

    Raises:
        OmniDraftError: the teacher cannot be reached or loaded, or the text is not there.
    """
    if isinstance(teacher, TextTeacher):
        from omnidraft.distill.sampling.text import TextSampler

        return TextSampler(teacher, folder)
    sampling = config.sampling
    openings = Openings(sampling.openings, prompts)
    if isinstance(teacher, LocalTeacher):
        from omnidraft.distill.sampling.local import open_local

        return open_local(teacher, sampling, openings, folder)
    from omnidraft.distill.sampling.server import ServerSampler

    return ServerSampler(teacher, sampling, openings)
