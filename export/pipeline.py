"""A drafter's checkpoint → a bundle for one backend, proven equal."""

from __future__ import annotations

import dataclasses
import os
import tempfile
import warnings
from pathlib import Path, PurePosixPath

from omnidraft.export.calibration import calibration_texts, held_texts
from omnidraft.export.checkpoint import Decoder, open_checkpoint
from omnidraft.export.checkpoint.safetensors import describe
from omnidraft.export.checkpoint.spec import check_drafts
from omnidraft.export.description import describe_folder, special_tokens
from omnidraft.export.interchange.tokenizer import without_prefix
from omnidraft.export.latency import measure_latency
from omnidraft.export.manifests import describe_bundle, with_files
from omnidraft.export.merging import MergedCheckpoint, find_adapter, prove_merged
from omnidraft.export.opening import float32_model, opened
from omnidraft.export.parity import (
    REFERENCE_FILE,
    Reference,
    likeliest_logits,
    make_reference,
    measure_parity,
    parity_text,
    shortcomings,
)
from omnidraft.export.recipes import Options, Recipe, Words, backends, find_recipe
from omnidraft.runtime.engines import open_engine
from omnidraft.runtime.errors import DamagedFileError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models.hub import hub_config, hub_name
from omnidraft.runtime.models.progress import Progress
from omnidraft.runtime.models.resolve import resolve_checkpoint
from omnidraft.runtime.storage.bundle import (
    BUNDLE_FILE,
    PROMISED_BITS,
    Bundle,
    Parity,
    Quantization,
    Thresholds,
)
from omnidraft.runtime.storage.files import expanded
from omnidraft.runtime.storage.folders import whole_folder
from omnidraft.runtime.storage.manifest import CHECKPOINTS
from omnidraft.runtime.text.tokenizer import Tokenizer, tokenizer_files

# Tokens of a calibration text: recipes run whole texts in one pass.
_LONGEST_TEXT = 1024
# Tokens of all calibration texts: see _check_enough.
_LEAST_CALIBRATION = 1024
# How much larger a logit error is noticed: less is chance.
_NOTICEABLE = 1.1


def export(
    name: str,
    output: Path,
    backend: str = "onnx",
    options: Options | None = None,
    *,
    calibration: Path | None = None,
    adapter: str | None = None,
    progress: Progress = lambda step, fraction: None,
) -> Bundle:
    """Write the bundle ``output``; it appears whole or not at all.

    Args:
        name: the checkpoint: ``default``, a folder, a GGUF file, or a Hugging Face id.
        output: folder to create; a bundle that is there is replaced, if the folder holds nothing
            else.
        backend: one of ``recipes.backends()``.
        options: see ``Options``.
        calibration: see ``calibration_texts``. The built-in texts are then tried beside it, which
            takes as long again, and if they do better on held text that is warned of.
        adapter: one to be merged into the weights: see ``merging.find_adapter``. The bundle is
            then another drafter's than the checkpoint: adapters of that do not fit it.
        progress: told each step.

    Raises:
        OmniDraftError: an option does not fit or has no effect, the calibration text is too short,
            the checkpoint cannot draft (see ``check_drafts``) or its tokenizer is not its own, the
            disk is full, the result is too far from float32, or the adapter cannot be merged.
    """
    recipe = find_recipe(backend)
    options = _complete(options or Options(), recipe)
    recipe.check(options)
    _check_output(output)
    if calibration is not None:
        _check_calibrated(recipe, options)
    calibrating = calibration_texts(calibration)

    def report(stage: str, done: int, total: int) -> None:
        progress(stage, done / total if total else None)

    # First of all, so that a place that cannot be written is found before the work is done.
    with whole_folder(output) as folder:
        source = find_checkpoint(name, progress)
        base = checkpoint = open_checkpoint(source)
        check_drafts(checkpoint.decoder, source)
        merged, lora = find_adapter(adapter, source, base.decoder) if adapter else (None, {})
        if merged:
            checkpoint = MergedCheckpoint(base, lora)
        files = tokenizer_files(source)
        if backend in CHECKPOINTS:
            files = without_prefix(files)
        tokenizer = Tokenizer(files)
        _check_vocabulary(checkpoint.decoder, tokenizer)
        context = _context(options, recipe, checkpoint.decoder)
        options = dataclasses.replace(options, context=context)
        progress("reference in float32", None)
        texts = [tokenizer.encode(text) for text in held_texts()]
        longest = min(context, _LONGEST_TEXT)
        tokens = [tokenizer.encode(text)[:longest] for text in calibrating]
        if calibration is not None:
            _check_enough(tokens, calibration)
        with float32_model(checkpoint, context, folder) as model:
            reference = make_reference(model, texts, recipe.parity_positions)
        if merged:
            with float32_model(base, context, folder) as model:
                without = likeliest_logits(model, reference)
        special = special_tokens(tokenizer, files)
        words = Words(files, special)
        built = recipe.build(checkpoint, folder, options, tokens, report, words)
        if calibration is not None and not built.calibrated:
            raise OmniDraftError(
                "--calibration has no effect on this checkpoint: its weights lie on a grid that "
                f"{options.quantization} holds without loss. Leave it out."
            )
        for file, content in files.items():
            (folder / file).write_bytes(content)
        reference.save(folder / REFERENCE_FILE)
        progress("checksums", None)
        bundle = describe_bundle(name, recipe, options, built, checkpoint, source)
        bundle = bundle.model_copy(update={"special_tokens": special, "merged": merged})
        describe_folder(bundle, folder)
        bundle = with_files(bundle, folder)
        bundle.save(folder)
        progress("parity", None)
        bundle, parity = _prove(bundle, folder, recipe, options, reference, calibration)
        if merged:
            with opened(bundle, folder, options.threads) as exported:
                bundle = prove_merged(bundle, exported, lora, without, reference)
        if backend not in CHECKPOINTS:
            progress("latency", None)
            latency = measure_latency(folder, options.threads)
            bundle = bundle.model_copy(update={"latency": [latency]})
        if built.finish:
            bundle = bundle.model_copy(update={"soc": built.finish()})
            describe_folder(bundle, folder)
            bundle = with_files(bundle, folder)
        bundle.save(folder)
        _warn_of_weights(bundle)
        if calibration is not None:
            progress("the same with the built-in text", None)
            built_in = [tokenizer.encode(text)[:longest] for text in calibration_texts()]
            plain = dataclasses.replace(options, train_step=False)
            with tempfile.TemporaryDirectory(prefix="built-in-", dir=folder) as scratch:
                other = Path(scratch)
                built = recipe.build(checkpoint, other, plain, built_in, report)
                bundled = describe_bundle(name, recipe, plain, built, checkpoint, None)
                with_files(bundled, other).save(other)
                usual = measure_parity(open_engine(other, threads=options.threads), reference)
            _warn_of_calibration(parity, usual, calibration)
        _check_output(output)  # again: files may have come meanwhile
    return bundle


def _complete(options: Options, recipe: Recipe) -> Options:
    usual = (options.soc and recipe.chip_quantization) or recipe.quantizations[0]
    chosen = options.quantization or usual
    if chosen not in recipe.quantizations:
        raise OmniDraftError(
            f"The {recipe.backend} backend has no quantization {chosen}; "
            f"it has {', '.join(recipe.quantizations)}."
        )
    if options.layout not in recipe.layouts:
        raise OmniDraftError(
            f"The {recipe.backend} backend has no layout {options.layout}; "
            f"it has {', '.join(recipe.layouts)}."
        )
    if options.min_agreement is not None and not 0 <= options.min_agreement <= 1:
        raise OmniDraftError(f"--min-agreement {options.min_agreement} is no share from 0 to 1.")
    rank = recipe.lora_rank if options.lora_rank is None else options.lora_rank
    return dataclasses.replace(options, quantization=chosen, lora_rank=rank)


def _check_calibrated(recipe: Recipe, options: Options) -> None:
    if options.quantization in recipe.calibrated:
        return
    using = [f"{name} {q}" for name in backends() for q in find_recipe(name).calibrated]
    raise OmniDraftError(
        f"--calibration has no effect on {recipe.backend} {options.quantization}: only "
        f"{' and '.join(using)} use it. Leave it out."
    )


def _check_enough(texts: list[list[int]], calibration: Path) -> None:
    """Refuse text that shows too little of what tensors hold."""
    if (count := sum(map(len, texts))) < _LEAST_CALIBRATION:
        raise OmniDraftError(
            f"{calibration} holds {count:,} tokens to calibrate with, {_LEAST_CALIBRATION:,} are "
            f"needed at least; of each text the first {_LONGEST_TEXT:,} count, or --context. Add "
            "text, or leave --calibration out for the built-in text."
        )


def _check_output(output: Path) -> None:
    """Refuse to write where something would be lost, or cannot be replaced."""
    try:
        reason = _obstacle(output)
    except OSError as error:
        reason = f"cannot be written: {error.strerror}"
    if reason:
        raise OmniDraftError(f"{output} {reason}. Choose another --output.")


def _obstacle(output: Path) -> str:
    if output.is_symlink():
        return "is a symbolic link, which would be replaced"
    if not output.exists():
        return ""
    if output.name in ("", "..") or Path.cwd().is_relative_to(output.resolve()):
        return "is the current folder, or one above it, and cannot be replaced"
    if output.is_mount():
        return "is where a disk is mounted and cannot be replaced"
    if not output.is_dir():
        return "exists and is no bundle"
    found = {path.relative_to(output).as_posix() for path in output.rglob("*")}
    if not found:
        return ""
    if BUNDLE_FILE not in found:
        return "exists and is no bundle"
    try:
        names = {BUNDLE_FILE, *Bundle.read(output).files}
    except DamagedFileError:
        return f"exists, and its {BUNDLE_FILE} is not one that says what else is in it"
    names |= {str(parent) for name in names for parent in PurePosixPath(name).parents}
    others = sorted(found - names)
    if not others:
        return ""
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return f"holds a bundle and files that are not of it: {', '.join(others[:3])}{more}"


def find_checkpoint(name: str, progress: Progress) -> Path:
    """The checkpoint of a drafter to export, fetched if need be; a repository's if it can draft.

    Raises:
        ModelNotFoundError, DamagedFileError, OmniDraftError: see ``export``.
    """
    repository = hub_name(name)
    if repository is not None and repository.file is None:
        check_drafts(describe(hub_config(repository, progress), name)[0], name)
    try:
        return resolve_checkpoint(name, progress=progress)
    except ModelNotFoundError as error:
        if not os.path.exists(expanded(name)):
            raise
        raise ModelNotFoundError(
            f"{name} is no checkpoint: neither a GGUF file nor a folder with config.json and "
            "weights."
        ) from error


def _context(options: Options, recipe: Recipe, decoder: Decoder) -> int:
    limit = decoder.context_length
    if options.context > limit:
        raise OmniDraftError(
            f"--context {options.context} is more than the model's limit of {limit} tokens."
        )
    return options.context or min(recipe.context or limit, limit)


def _check_vocabulary(decoder: Decoder, tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size > decoder.vocab_size:
        raise OmniDraftError(
            f"vocabulary mismatch: the tokenizer has {tokenizer.vocab_size} tokens, the model "
            f"{decoder.vocab_size}. Put the model's own tokenizer.json beside its weights."
        )


def _prove(
    bundle: Bundle,
    folder: Path,
    recipe: Recipe,
    options: Options,
    reference: Reference,
    calibration: Path | None,
) -> tuple[Bundle, Parity]:
    """The bundle with its parity, saved, if that is good enough."""
    thresholds = recipe.thresholds[bundle.quantization]
    if options.min_agreement is not None:
        thresholds = Thresholds(smallest_agreement=options.min_agreement, largest_logit_error=None)
    elif reference.untrained:
        thresholds = thresholds.model_copy(update={"smallest_agreement": None})
    with opened(bundle, folder, options.threads) as exported:
        parity = measure_parity(exported, reference)
    if reference.untrained:
        warnings.warn(
            f"The float32 model gives its likeliest token {reference.certainty:.2%} on average: it "
            "looks untrained. Which token is the likeliest is then chance, and any two such models "
            "accept each other's drafts, so neither agreement says anything; the logit error does.",
            stacklevel=3,
        )
    if reasons := shortcomings(parity, thresholds):
        raise OmniDraftError(
            f"The exported drafter is too far from float32: {' and '.join(reasons)}. Found: "
            f"{parity_text(parity, thresholds)}. Nothing was kept. "
            f"{_remedy(bundle.quantization, recipe, calibration)}"
        )
    bundle = bundle.model_copy(update={"parity": parity, "thresholds": thresholds})
    bundle.save(folder)
    return bundle, parity


def _warn_of_weights(bundle: Bundle) -> None:
    share = bundle.promised_share
    if share is not None and share < 0.5:
        warnings.warn(
            f"Only {share:.0%} of the weights have the {PROMISED_BITS[bundle.quantization]} bits "
            f"that {bundle.quantization} promises ({bundle.weights_text}): with fewer bits the "
            "others would be further from float32 than is allowed, or their shape does not fit.",
            stacklevel=3,
        )


def _warn_of_calibration(found: Parity, built_in: Parity, calibration: Path) -> None:
    if found.logit_error > _NOTICEABLE * built_in.logit_error:
        warnings.warn(
            f"With {calibration} the drafter does worse on held text than with the built-in text: "
            f"logit error {found.logit_error:.2%} instead of {built_in.logit_error:.2%}, top-1 "
            f"agreement {found.top1_agreement:.2%} instead of {built_in.top1_agreement:.2%}. Leave "
            "--calibration out unless your text is of another kind.",
            stacklevel=3,
        )


def _remedy(quantization: Quantization, recipe: Recipe, calibration: Path | None) -> str:
    remedies = []
    if quantization != "none" and "none" in recipe.quantizations:
        remedies.append("a finer --quantization")
    if quantization in recipe.calibrated:
        remedies.append(
            "--calibration with text of its kind" if calibration is None else "no --calibration"
        )
    remedies.append("by --min-agreement what is enough for you")
    return f"Choose {', or '.join(remedies)}."
