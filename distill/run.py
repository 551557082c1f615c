"""All of it: from a configuration to a drafter, by steps that leave whole files behind."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from filelock import FileLock, Timeout
from safetensors.torch import save_file

from omnidraft.distill.batches import Plan
from omnidraft.distill.card import Sampled, card
from omnidraft.distill.config import Config, Stage, Teacher, load_config
from omnidraft.distill.documents import Documents, build, load_documents, save_documents
from omnidraft.distill.evaluation import Figures, evaluate
from omnidraft.distill.network import Drafter, hf_config
from omnidraft.distill.packing import FORMAT, pack, unpack
from omnidraft.distill.sampled_text import sample
from omnidraft.distill.shards import Shard, count_shard, read_shard, shards_of
from omnidraft.distill.spellings import Speller
from omnidraft.distill.training import Told, train
from omnidraft.distill.vocabulary_order import order_of, proposals, reordered_tokenizer
from omnidraft.runtime.cores import own_cores
from omnidraft.runtime.errors import ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.catalogue import default_drafter_folder
from omnidraft.runtime.storage.files import whole_file
from omnidraft.runtime.storage.folders import whole_folder
from omnidraft.runtime.text.tokenizer import Tokenizer, tokenizer_files

Show = Callable[[str, float | None, str], None]
"""Is told the step, how much of it is done, and a detail."""
# Batches over which the vocabulary is ordered, and no more than were learned from.
_ORDERED_BY = 200
_SOON = 5.0  # seconds for one that was killed to end
_WAIT = timedelta(hours=24)  # of processes that have nothing to do


@dataclass(frozen=True)
class Result:
    """A drafter's folder, and what it is worth with each teacher's text.

    Args:
        figures: in the first process alone.
        before: of the drafter that training went on from, if it did.
    """

    folder: Path
    figures: dict[str, Figures]
    before: dict[str, Figures]


def distill(path: Path, output: Path, show: Show = lambda step, done, detail: None) -> Result:
    """Make a drafter, or go on where it was stopped.

    Every process of ``torchrun`` or ``accelerate launch`` calls it alike, with a folder that all
    see.

    Args:
        path: the configuration.
        output: ``shards/``, ``documents/``, ``training/``, and ``drafter/`` in the end.

    Raises:
        OmniDraftError: see the steps; or the folder is another configuration's.
    """
    config = load_config(path)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(), kwargs_handlers=[InitProcessGroupKwargs(timeout=_WAIT)]
    )
    run = _Run(config, path, output, accelerator, show)
    with run.claimed():
        run.sample()
        run.spell()
        model = run.train()
        if accelerator.is_main_process:
            run.finish(model)
        accelerator.wait_for_everyone()
    accelerator.end_training()
    return Result(output / "drafter", run.figures, run.before)


class _Run:
    def __init__(
        self, config: Config, path: Path, output: Path, accelerator: Accelerator, show: Show
    ) -> None:
        self.config, self.path, self.output, self.accelerator = config, path, output, accelerator
        self.show: Show = show if accelerator.is_main_process else lambda *_: None
        self.files = tokenizer_files(_tokenizer_folder(config, path.parent))
        self.tokenizer = Tokenizer(self.files)
        self.speller = Speller(self.tokenizer)
        self._begun()  # an error of the sizes now, not after all has been sampled
        self.figures: dict[str, Figures] = {}
        self.before: dict[str, Figures] = {}

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Make the folder this configuration's, and this run's until the end."""
        with ExitStack() as stack:
            if self.accelerator.is_main_process:
                self._claim(stack)
            self.accelerator.wait_for_everyone()
            yield

    def _claim(self, stack: ExitStack) -> None:
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(self.output / ".lock").acquire(timeout=_SOON))
        except Timeout as error:
            raise OmniDraftError(
                f"Another process makes a drafter in {self.output}. Wait for it, or choose another "
                "folder."
            ) from error
        except (OSError, NotImplementedError) as error:  # the latter: a file system without locks
            said = getattr(error, "strerror", None) or error
            raise OmniDraftError(
                f"{self.output} cannot be made or written into: {said}. Choose another folder."
            ) from error
        copy = self.output / "config.toml"
        try:
            same = not copy.exists() or load_config(copy) == self.config
        except OmniDraftError:
            same = False
        if not same:
            raise OmniDraftError(
                f"{self.output} holds what another configuration made. Choose another folder, "
                "or delete it."
            )
        with whole_file(copy) as file:
            file.write_bytes(self.path.read_bytes())

    def sample(self) -> None:
        """Text of each teacher."""
        for teacher in self.config.teachers:
            folder = self.output / "shards" / teacher.name
            there = shards_of(folder)
            # No process writes before all have seen the same.
            self.accelerator.wait_for_everyone()

            def tell(done: int, wanted: int | None, name: str = teacher.name) -> None:
                share = min(1.0, done / wanted) if wanted else None
                self.show(f"sampling {name}", share, f"{done:,} tokens")

            sample(
                teacher,
                self.config,
                folder,
                self.path.parent,
                there,
                rank=self.accelerator.process_index,
                processes=self.accelerator.num_processes,
                tell=tell,
            )
            self.accelerator.wait_for_everyone()

    def spell(self) -> None:
        """Documents of each shard."""
        jobs = []
        for teacher in self.config.teachers:
            shards = shards_of(self.output / "shards" / teacher.name)
            if not shards:
                raise OmniDraftError(f"{teacher.name} has given no text.")
            held_out = _held_out_of(shards, self.config.held_out)
            for shard, (held, count) in zip(shards, held_out, strict=True):
                documents = self.output / "documents" / teacher.name / f"{shard.stem}.safetensors"
                if held < count and not documents.exists():
                    jobs.append(_Job(self.config, self.files, shard, documents, held))
        # No process writes before all have seen the same.
        self.accelerator.wait_for_everyone()
        mine = jobs[self.accelerator.process_index :: self.accelerator.num_processes]
        workers = max(1, min(len(mine), own_cores().usable // self.accelerator.num_processes))
        with ExitStack() as stack:
            # Not forked: this process may hold a GPU.
            pool = stack.enter_context(ProcessPoolExecutor(workers, get_context("spawn")))
            # One at a time is as fast here as by another process.
            run = pool.map if workers > 1 else map
            for done, _ in enumerate(run(_spell, mine)):
                self.show("spelling", (done + 1) / len(mine), "")
        self.accelerator.wait_for_everyone()

    def train(self) -> Drafter:
        """The drafter, after all stages."""
        config = self.config
        torch.manual_seed(config.seed)
        model = self._begun()
        stages = config.training.stages
        checkpoints = [
            self.output / "training" / f"stage-{i}.pt" for i in range(1, len(stages) + 1)
        ]
        for number, (stage, checkpoint) in enumerate(zip(stages, checkpoints, strict=True), 1):
            if any(later.exists() for later in checkpoints[number:]):
                continue

            def tell(told: Told, number: int = number, stage: Stage = stage) -> None:
                detail = f"step {told.step:,}, loss {told.loss:.4f}, {told.speed:,.0f} positions/s"
                self.show(f"stage {number}", told.step / stage.steps, detail)
                self._log({"stage": number, **vars(told)})

            train(
                model,
                self._plan(stage.cut_heads, seed=config.seed + number),
                stage,
                config.training,
                checkpoint=checkpoint,
                digest=self._digest(number),
                accelerator=self.accelerator,
                tell=tell,
            )
        return model

    def finish(self, model: Drafter) -> None:
        """Order the vocabulary, measure, pack, and write the card."""
        config = self.config
        grid = config.training.stages[-1].grid
        self.show("ordering the vocabulary", None, "")
        plan = self._plan(False, seed=config.seed, alone=True)
        batches = min(_ORDERED_BY, sum(stage.steps for stage in config.training.stages))
        mass = proposals(model, islice(plan.steps(0), batches))
        specials = [token for token, each in enumerate(self.tokenizer.surfaces) if each is None]
        order = order_of(mass, specials)
        self._evaluate(model)
        state = model.hf_state()
        name = "model.embed_tokens.weight"
        state[name] = state[name][order]
        begin = order.index(self.speller.begin)
        ends = sorted(order.index(token) for token in self.tokenizer.eos_ids)
        described = hf_config(config.drafter, len(order), begin, ends[0] if ends else begin)
        if config.drafter.drafted_tokens is not None:
            described["drafted_tokens"] = min(config.drafter.drafted_tokens, len(order))
        sampled = {}
        for teacher in config.teachers:
            parts = [load_documents(path) for path in self._documents(teacher)]
            sampled[teacher.name] = Sampled(
                sum(len(part.starts) for part in parts), sum(len(part.tokens) for part in parts)
            )
        parameters = sum(p.numel() for p in model.parameters())
        versions = {each: version(each) for each in ("torch", "accelerate", "pyarrow")}
        tokenizer = reordered_tokenizer(self.files["tokenizer.json"], order)
        figures = {name: each.as_dict() for name, each in self.figures.items()}
        for name, each in self.before.items():
            figures[name]["before"] = each.as_dict()
        with whole_folder(self.output / "drafter") as folder:
            save_file(pack(state, grid=grid), folder / "model.safetensors", {"format": FORMAT})
            (folder / "model.safetensors").chmod(0o644)
            (folder / "tokenizer.json").write_bytes(tokenizer)
            if (settings := self.files.get("tokenizer_config.json")) is not None:
                (folder / "tokenizer_config.json").write_bytes(settings)
            (folder / "config.toml").write_bytes(self.path.read_bytes())
            _write_json(folder / "config.json", described)
            _write_json(folder / "figures.json", figures)
            text = card(config, sampled, self.figures, self.before, parameters, versions)
            (folder / "README.md").write_text(text, "utf-8")

    def _begun(self) -> Drafter:
        """The drafter before training."""
        shape = self.config.drafter
        model = Drafter(shape, self.speller.vocab_size)
        if shape.start is not None:
            _take_weights(model, _drafter_folder(shape.start, self.path.parent))
        return model

    def _evaluate(self, model: Drafter) -> None:
        """What the drafter is worth, and what it was worth before."""
        config = self.config
        begun_from = None
        if config.drafter.start is not None:
            begun_from = self._begun().to(self.accelerator.device)
        for teacher in config.teachers:
            self.show("evaluating", None, teacher.name)
            held_out = []
            shards = shards_of(self.output / "shards" / teacher.name)
            for path, (held, _) in zip(shards, _held_out_of(shards, config.held_out), strict=True):
                if held:
                    shard = read_shard(path)
                    held_out += [(shard.surfaces, each) for each in shard.documents[:held]]
            self.figures[teacher.name] = evaluate(model, held_out, self.speller)
            if begun_from is not None:
                self.before[teacher.name] = evaluate(begun_from, held_out, self.speller)

    def _plan(self, cut_heads: bool, seed: int, alone: bool = False) -> Plan:
        parts: list[tuple[Documents, float]] = []
        for teacher in self.config.teachers:
            parts += [(load_documents(path), teacher.weight) for path in self._documents(teacher)]
        return Plan(
            parts,
            positions=self.config.training.positions,
            longest=self.config.training.longest,
            cut_heads=cut_heads,
            seed=seed,
            device=str(self.accelerator.device),
            rank=0 if alone else self.accelerator.process_index,
            processes=1 if alone else self.accelerator.num_processes,
        )

    def _documents(self, teacher: Teacher) -> list[Path]:
        return sorted((self.output / "documents" / teacher.name).glob("*.safetensors"))

    def _digest(self, stage: int) -> str:
        """Of what decides a stage's weights: the configuration up to it, and the documents."""
        config = self.config.model_dump()
        config["training"]["stages"] = config["training"]["stages"][:stage]
        files = sorted((self.output / "documents").rglob("*.safetensors"))
        listed = [[file.name, file.stat().st_size] for file in files]
        said = json.dumps([config, listed], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()

    def _log(self, values: dict[str, object]) -> None:
        log = self.output / "training" / "log.jsonl"
        log.parent.mkdir(exist_ok=True)
        with log.open("a") as file:
            file.write(json.dumps(values) + "\n")


@dataclass(frozen=True)
class _Job:
    """A shard to be spelled. ``held_out``: so many of its first documents are not."""

    config: Config
    tokenizer: dict[str, bytes]
    shard: Path
    documents: Path
    held_out: int


def _held_out_of(shards: Sequence[Path], wanted: int) -> list[tuple[int, int]]:
    """How many of each shard's documents are not learned from, and how many it has."""
    counts = [count_shard(path)[0] for path in shards]
    left = min(wanted, sum(counts) // 4)
    held_out = []
    for count in counts:
        held_out.append((min(left, count), count))
        left -= held_out[-1][0]
    return held_out


def _spell(job: _Job) -> None:
    shard = read_shard(job.shard)
    shard = Shard(shard.surfaces, shard.documents[job.held_out :])
    training = job.config.training
    speller = Speller(Tokenizer(job.tokenizer))
    documents = build(
        shard,
        speller,
        canonical=training.canonical,
        user_weight=training.user_weight,
        longest=training.longest,
        seed=job.config.seed,
    )
    save_documents(job.documents, documents)


def _tokenizer_folder(config: Config, folder: Path) -> Path:
    """Of the drafter to go on from, or the one that is named, or the default drafter's."""
    if config.drafter.start is None and config.tokenizer is not None:
        return folder / config.tokenizer
    return _drafter_folder(config.drafter.start or "default", folder)


def _drafter_folder(name: str, folder: Path) -> Path:
    """Of a drafter by its path, relative to ``folder``, or the default one."""
    return default_drafter_folder() if name == "default" else folder / name


def _take_weights(model: Drafter, folder: Path) -> None:
    path = folder / "model.safetensors"
    if not path.is_file():
        raise ModelNotFoundError(f"There is no drafter {folder} to go on from.")
    state = {name.removeprefix("model."): value for name, value in unpack(path).items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise OmniDraftError(
            f"{folder} is a drafter of other sizes than the configuration's: {error}"
        ) from error


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
