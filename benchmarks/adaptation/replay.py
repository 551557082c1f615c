"""A target's greedy answers, recorded once, in the target's place ever after.

A greedy answer depends on the target alone: speculation is lossless. So what a drafter, an adapter
or an n-gram cache makes of an answer can be seen without the target: its rows at the tokens of the
answer say where a draft is accepted and where not, and of rows after a rejection nothing is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnidraft.runtime.bench import Prompt
from omnidraft.runtime.engines.model import check_pass, check_truncation
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.learning.adapter import model_key
from omnidraft.runtime.models import LoadedModel
from omnidraft.runtime.options import GenerationOptions
from omnidraft.runtime.session import Session
from omnidraft.runtime.storage.files import whole_file
from omnidraft.runtime.storage.manifest import MANIFEST_FILE, Manifest

# Prompts after which a recording is saved: an interrupted one goes on there.
_SAVE_EVERY = 20


class ReplayModel:
    """A ``CausalModel`` that says again what a target said in one greedy answer.

    Its rows are 1 at the answer's next token and 0 elsewhere, and 0 everywhere after tokens that
    are not the answer's: enough to verify greedily, nothing to learn from.
    """

    def __init__(self, vocab_size: int, max_length: int) -> None:
        self._vocab_size = vocab_size
        self._max_length = max_length
        self._sequence: list[int] = []
        self._length = 0
        self._agreed = 0  # leading tokens that are the sequence's
        self._logits = np.zeros((0, vocab_size), np.float32)
        self._hot: list[tuple[int, int]] = []

    def play(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """The generation that comes next: target tokens of a prompt and of its answer."""
        self._sequence = [*prompt, *answer]
        self.truncate(0)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def length(self) -> int:
        return self._length

    @property
    def max_length(self) -> int:
        return self._max_length

    def forward(
        self, tokens: Sequence[int] | NDArray[np.int64], rows: int | None = None
    ) -> NDArray[np.float32]:
        """See ``CausalModel.forward``."""
        ids, rows = check_pass(self, tokens, rows)
        for at in self._hot:
            self._logits[at] = 0
        self._hot.clear()
        if len(self._logits) < rows:
            self._logits = np.zeros((rows, self._vocab_size), np.float32)
        first = len(ids) - rows
        for i, token in enumerate(ids.tolist()):
            if self._agreed == self._length < len(self._sequence):
                self._agreed += token == self._sequence[self._length]
            self._length += 1
            if i >= first and self._agreed == self._length < len(self._sequence):
                self._hot.append((i - first, self._sequence[self._length]))
        for at in self._hot:
            self._logits[at] = 1
        return self._logits[:rows]

    def truncate(self, length: int) -> None:
        """See ``CausalModel.truncate``."""
        check_truncation(self, length)
        self._length = length
        self._agreed = min(self._agreed, length)


class Answers:
    """A target's plain greedy answers, kept in a file: each prompt is answered once.

    Args:
        target: its conversion and engine are part of the file's name.
        options: of generation; how it drafts makes no difference.
        folder: where the file is.

    Raises:
        OmniDraftError: the file is damaged.
    """

    def __init__(self, target: LoadedModel, options: GenerationOptions, folder: Path) -> None:
        self.target = target
        self.options = replace(options, draft_length=0)
        kind = "raw" if options.raw else "chat"
        digest = _digest(target)[:12]
        name = f"{target.path.name}-{digest}-{target.engine}-{kind}-{options.max_new_tokens}.json"
        self.path = folder / name
        self._answers: dict[str, list[int]] = {}
        if self.path.exists():
            try:
                self._answers = json.loads(self.path.read_text("utf-8"))
                if not all(isinstance(each, list) for each in self._answers.values()):
                    raise ValueError("not an object of lists")
            except (OSError, ValueError, AttributeError) as error:
                raise OmniDraftError(
                    f"the recorded answers {self.path} cannot be read ({error}); delete the file, "
                    "and they are recorded anew"
                ) from error

    def get(self, prompt: Prompt) -> list[int] | None:
        """Target tokens of the answer, an end-of-text token included; None: not recorded."""
        return self._answers.get(prompt.prompt)

    def record(self, prompts: Sequence[Prompt], done: Callable[[], None] = lambda: None) -> None:
        """Answer, plainly, every prompt that was not answered before.

        Args:
            done: called after each prompt.

        Raises:
            ContextOverflowError, OmniDraftError: see ``Session.generate``; or no space to save.
        """
        session = Session(self.target)
        unsaved = 0
        try:
            for prompt in prompts:
                if prompt.prompt not in self._answers:
                    answer = session.generate(prompt.prompt, self.options)
                    self._answers[prompt.prompt] = answer.token_ids
                    unsaved += 1
                if unsaved >= _SAVE_EVERY:
                    self._save()
                    unsaved = 0
                done()
        finally:
            if unsaved:
                self._save()

    def _save(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(self.path) as file:
                file.write_text(json.dumps(self._answers), "utf-8")
        except (OSError, OmniDraftError) as error:
            raise OmniDraftError(
                f"the answers cannot be kept ({error}); free some disk space, or set "
                "OMNIDRAFT_CACHE to a folder that can be written"
            ) from error


def _digest(target: LoadedModel) -> str:
    """What the answers depend on: not the model's source only, but how it was converted."""
    if (target.path / MANIFEST_FILE).is_file():
        return sha256(json.dumps(Manifest.load(target.path).files).encode()).hexdigest()
    return model_key(target.name, target.path).sha256
