"""Bring the target, the drafter and the prompts into the forms that the engines read."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from benchmarks.peers.measure import Task
from omnidraft.export.checkpoint.safetensors import INT8_FORMAT
from omnidraft.export.recipes.gguf import GGUF_FILE
from omnidraft.runtime.bench import Prompt
from omnidraft.runtime.errors import OmniDraftError
from omnidraft.runtime.models.cache import cache_folder
from omnidraft.runtime.storage.files import whole_file
from omnidraft.runtime.storage.gguf import read_gguf_metadata
from omnidraft.runtime.storage.manifest import BUNDLE_FILE
from omnidraft.runtime.text.tokenizer import Tokenizer

FILLER = Path(__file__).with_name("context.txt")


def gguf_type(checkpoint: Path) -> str | None:
    """The type of most tensors of a GGUF file, such as Q4_1; None for a folder."""
    if checkpoint.is_dir():
        return None
    import gguf

    kind = read_gguf_metadata(checkpoint, "general.").get("general.file_type")
    return "GGUF" if kind is None else gguf.LlamaFileType(kind).name.removeprefix("MOSTLY_")


def peers_folder(checkpoint: Path) -> Path:
    """Where what is built for peers from this checkpoint is kept."""
    size = sum(file.stat().st_size for file in checkpoint.rglob("*") if file.is_file())
    size = size or checkpoint.stat().st_size
    digest = sha256(f"{checkpoint.resolve()} {size}".encode()).hexdigest()[:12]
    return cache_folder() / "peers" / f"{checkpoint.stem}-{digest}"


def float_drafter(checkpoint: Path) -> Path:
    """A Hugging Face folder with the drafter in float32.

    A drafter in this project's int8 blocks is written once more; any other is used as it is.

    Raises:
        OmniDraftError: the drafter is a file; transformers needs a folder.
    """
    from safetensors import safe_open

    if not checkpoint.is_dir():
        raise OmniDraftError(f"{checkpoint} is no folder with a config.json, as peers need it.")
    weights = checkpoint / "model.safetensors"
    if not weights.is_file():
        return checkpoint
    with safe_open(weights, framework="numpy") as file:
        if (file.metadata() or {}).get("format") != INT8_FORMAT:
            return checkpoint
    content = sha256(weights.read_bytes()).hexdigest()[:12]
    folder = cache_folder() / "peers" / f"transformers-{content}"
    return _exported(checkpoint, folder, "transformers")


def _exported(checkpoint: Path, folder: Path, backend: str) -> Path:
    """The folder with a drafter's bundle, made now if it is not there."""
    from omnidraft.export.pipeline import export

    if not (folder / BUNDLE_FILE).is_file():
        export(str(checkpoint), folder, backend)
    return folder


def gguf_files(checkpoint: Path, drafter: Path, kinds: Sequence[str]) -> dict[str, str]:
    """Paths of what llama.cpp reads, by type; the drafter's under "drafter".

    Args:
        checkpoint: of the target; nothing is written for one that is no GGUF file.
        drafter: a folder that ``float_drafter`` gave.
        kinds: types; the file's own is the file itself.
    """
    own = gguf_type(checkpoint)
    if own is None:
        return {}
    from benchmarks.requantize import requantize

    files = {own: checkpoint}
    for kind in kinds:
        path = peers_folder(checkpoint) / f"{kind}.gguf"
        if kind not in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.is_file():
                with whole_file(path) as scratch:
                    requantize(checkpoint, kind, scratch)
            files[kind] = path
    files["drafter"] = _exported(drafter, peers_folder(drafter) / "gguf", "gguf") / GGUF_FILE
    return {kind: str(file) for kind, file in files.items()}


def tasks(prompts: Sequence[Prompt], tokenizer: Tokenizer, context: int | None) -> list[Task]:
    """Tokenize prompts as OmniDraft does, padded to about ``context`` tokens if that is given.

    Raises:
        OmniDraftError: the text to pad with is too short.
    """
    filler = FILLER.read_text("utf-8").split("\n\n")
    return [_task(prompt, tokenizer, context, filler) for prompt in prompts]


def _task(prompt: Prompt, tokenizer: Tokenizer, context: int | None, filler: list[str]) -> Task:
    words = "\n\n".join(filler).split(" ")

    def padded(count: int) -> str:
        return " ".join(words[:count]) + "\n\n" + prompt.prompt if count else prompt.prompt

    low, high = 0, len(words)
    if context:
        if len(encode(tokenizer, padded(high))) < context:
            raise OmniDraftError(f"prompts cannot be padded to {context} tokens; ask for fewer")
        while low < high:
            middle = (low + high + 1) // 2
            if len(encode(tokenizer, padded(middle))) <= context:
                low = middle
            else:
                high = middle - 1
    text = padded(low)
    return Task(prompt.task, text, encode(tokenizer, text))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Target tokens of a prompt, as ``Session.encode`` makes them."""
    if tokenizer.has_chat_template:
        return tokenizer.encode_chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


def pick(prompts: Sequence[Prompt], per_task: int, tuning: Sequence[Prompt]) -> list[Prompt]:
    """The first ``per_task`` of each task, the tasks taking turns, without the tuning prompts.

    Raises:
        OmniDraftError: nothing is left.
    """
    known = {prompt.prompt for prompt in tuning}
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        members = by_task.setdefault(prompt.task, [])
        if prompt.prompt not in known and len(members) < per_task:
            members.append(prompt)
    picked = [
        members[index]
        for index in range(per_task)
        for members in by_task.values()
        if index < len(members)
    ]
    if not picked:
        raise OmniDraftError("all prompts are tuning prompts; measure others (--prompts)")
    return picked
