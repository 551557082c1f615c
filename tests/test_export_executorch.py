"""ExecuTorch bundles: what the engine says of them is what the float32 model says."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import needs
from tiny import write_drafter

torch = needs("torch")
needs("executorch")
needs("torchao")

from omnidraft.export.checkpoint import Checkpoint, open_checkpoint  # noqa: E402
from omnidraft.export.checkpoint.spec import lora_shapes  # noqa: E402
from omnidraft.export.pipeline import export  # noqa: E402
from omnidraft.export.recipes import Options, find_recipe  # noqa: E402
from omnidraft.export.torch_llama.loss import hybrid_loss  # noqa: E402
from omnidraft.export.torch_llama.model import Llama, causal_mask  # noqa: E402
from omnidraft.runtime.engines import open_engine  # noqa: E402
from omnidraft.runtime.engines.executorch import ExecuTorchModel  # noqa: E402
from omnidraft.runtime.errors import (  # noqa: E402
    ContextOverflowError,
    MissingDependencyError,
    OmniDraftError,
)
from omnidraft.runtime.storage.bundle import Bundle, FileEntry  # noqa: E402
from omnidraft.runtime.storage.manifest import describe_files  # noqa: E402

CONTEXT, RANK = 160, 4
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter") / "checkpoint", seed=1)


@pytest.fixture(scope="module")
def bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("executorch") / "bundle"
    options = Options("none", lora_rank=RANK, context=CONTEXT, train_step=True)
    export(str(source), folder, "executorch", options)
    return folder


def reference(
    checkpoint: Checkpoint, tokens: np.ndarray, lora: dict[str, np.ndarray] | None = None
) -> np.ndarray:
    positions = torch.arange(len(tokens))
    names = lora_shapes(checkpoint.decoder, rank=1) if lora else ()
    weights = [torch.from_numpy(lora[name]) for name in names] if lora else []
    with torch.no_grad():
        logits = Llama(checkpoint, len(tokens), cached=False)(
            torch.from_numpy(tokens)[None], positions, causal_mask(positions, len(tokens)), weights
        )
    return logits[0].numpy()


def adapter(checkpoint: Checkpoint, rank: int) -> dict[str, np.ndarray]:
    shapes = lora_shapes(checkpoint.decoder, rank)
    return {
        name: (RNG.standard_normal(shape) * 0.2).astype(np.float32)
        for name, shape in shapes.items()
    }


def test_passes_of_any_length_and_cutting_back(source: Path, bundle: Path) -> None:
    checkpoint = open_checkpoint(source)
    model = open_engine(bundle)
    assert isinstance(model, ExecuTorchModel)
    assert model.max_length == CONTEXT
    (decoder,) = model.bundle.decoders
    assert (decoder.tokens, decoder.most_tokens) == (None, model._width) == (None, 64)
    tokens = RNG.integers(0, model.vocab_size, CONTEXT)
    expected = reference(checkpoint, tokens)
    # Longer than the program takes at once; then steps; then another branch, and back.
    found = [model.forward(tokens[:100])]
    found += [model.forward(tokens[i : i + 1]) for i in range(100, 104)]
    model.forward(RNG.integers(0, model.vocab_size, 9))
    model.truncate(102)
    assert model.length == 102
    last = model.forward(tokens[102:], rows=2)
    assert np.abs(np.concatenate(found) - expected[:104]).max() < 1e-3
    assert np.abs(last - expected[-2:]).max() < 1e-3
    with pytest.raises(ContextOverflowError):
        model.forward([0])
    assert model.length == CONTEXT
    with pytest.raises(ValueError, match="truncate"):
        model.truncate(CONTEXT + 1)


def test_the_compiler_is_not_imported_to_run(bundle: Path) -> None:
    """It takes several seconds, and torch alone two."""
    code = """
import sys
from pathlib import Path
from omnidraft.runtime.engines import open_engine
assert open_engine(Path(sys.argv[1])).forward([1, 2, 3]).shape[0] == 3
print(*(name for name in ("executorch.exir", "torchao", "torch._dynamo") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", code, str(bundle)], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip() == "", done.stdout + done.stderr


def test_adapters_switch_at_run_time(source: Path, bundle: Path) -> None:
    checkpoint = open_checkpoint(source)
    model = ExecuTorchModel(bundle)
    tokens = RNG.integers(0, model.vocab_size, 20)
    full = adapter(checkpoint, RANK)
    # Another rank for one linear, and nothing for the others.
    part = {n: a for n, a in adapter(checkpoint, 2).items() if n.startswith("lora.1.down")}
    for chosen in (None, full, part, None):
        model.truncate(0)
        model.set_adapter(chosen)
        expected = reference(
            checkpoint,
            tokens,
            chosen and {n: a * 0 for n, a in full.items() if n not in chosen} | chosen,
        )
        assert np.abs(model.forward(tokens) - expected).max() < 1e-3
    assert np.abs(reference(checkpoint, tokens, full) - expected).max() > 0.1
    with pytest.raises(OmniDraftError, match="at most 4"):
        model.set_adapter(adapter(checkpoint, RANK + 1))
    with pytest.raises(OmniDraftError, match="other half"):
        model.set_adapter({"lora.0.o.A": full["lora.0.o.A"]})


def test_an_adapter_of_rank_0_is_the_base_model(source: Path, bundle: Path, tmp_path: Path) -> None:
    """The program itself would compute nonsense of it, and an export without adapters has none."""
    checkpoint = open_checkpoint(source)
    tokens = RNG.integers(0, checkpoint.decoder.vocab_size, 70)
    expected = reference(checkpoint, tokens)
    model = ExecuTorchModel(bundle)
    none = adapter(checkpoint, 0)
    half = {n: a for n, a in none.items() if n.startswith("lora.0")}
    for chosen in (none, half, {}, None):
        model.set_adapter(chosen)
        assert np.abs(model.forward(tokens) - expected).max() < 1e-3
    with pytest.raises(OmniDraftError, match="does not fit"):
        model.set_adapter(none | {"lora.0.o.B": np.zeros((1, 64), np.float32)})
    options = Options("none", lora_rank=0, context=CONTEXT)
    assert export(str(source), tmp_path / "plain", "executorch", options).lora is None
    plain = ExecuTorchModel(tmp_path / "plain")
    assert np.abs(plain.forward(tokens) - expected).max() < 1e-3
    plain.set_adapter({})
    with pytest.raises(OmniDraftError, match="no LoRA inputs"):
        plain.set_adapter(none)


def test_libraries_say_nothing_of_themselves(source: Path, bundle: Path, tmp_path: Path) -> None:
    """Neither to the terminal nor into what is meant for others; what is wrong is still said."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "omnidraft", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    # Another number of threads: the pool is made anew, which the library would report.
    out = ("--output", str(tmp_path / "out"), "--context", "32", "--threads", "1")
    exported = run("export", str(source), *out, "--backend", "executorch", "--json")
    verified = run("inspect", str(bundle), "--verify", "--json")
    for done in (exported, verified):
        assert done.returncode == 0 and done.stderr == ""
        assert json.loads(done.stdout)["backend"] == "executorch"
    shutil.copytree(bundle, tmp_path / "copy")
    program = tmp_path / "copy" / "model.pte"
    program.write_bytes(program.read_bytes()[:-1000])
    manifest = Bundle.read(tmp_path / "copy")
    files = {n: FileEntry(**entry) for n, entry in describe_files(tmp_path / "copy").items()}
    del files["omnidraft.json"]
    manifest.model_copy(update={"files": files}).save(tmp_path / "copy")
    done = run("inspect", str(tmp_path / "copy"), "--verify")
    assert done.returncode == 2 and "model.pte cannot be loaded" in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("quantization", "bits"), [("int8", 8), ("int4", 4)])
def test_the_report_says_how_many_bits_the_weights_have(
    source: Path, tmp_path: Path, quantization: str, bits: int
) -> None:
    options = Options(quantization, lora_rank=0, context=CONTEXT)  # type: ignore[arg-type]
    built = find_recipe("executorch").build(
        open_checkpoint(source), tmp_path, options, [], lambda *_: None
    )
    shares = {part.bits: part for part in built.weights}
    assert shares[bits].products == 9 and shares.keys() <= {bits, 8}
    stored = sum(part.elements * part.bits // 8 for part in built.weights)
    # Scales, norms, rotary tables and the program beside.
    assert stored < (tmp_path / built.graphs[0].file).stat().st_size < stored + 80_000


@pytest.mark.parametrize(("quantization", "likeness"), [("int8", 0.999), ("int4", 0.97)])
def test_quantized(source: Path, tmp_path: Path, quantization: str, likeness: float) -> None:
    options = Options(quantization, lora_rank=0, context=CONTEXT)  # type: ignore[arg-type]
    recipe = find_recipe("executorch")
    checkpoint = open_checkpoint(source)
    built = recipe.build(checkpoint, tmp_path, options, [], lambda stage, done, total: None)
    path = tmp_path / built.graphs[0].file
    weights = sum(
        checkpoint.rows(name).size
        for name in ("embedding", "head", *(f"{i}.{p}" for i in (0, 1) for p in ("q", "gate")))
    )
    assert path.stat().st_size < weights * 4  # float32 would be larger
    import executorch.kernels.quantized  # noqa: F401
    from executorch.runtime import Runtime

    method = Runtime.get().load_program(path).load_method("forward")
    tokens = RNG.integers(0, checkpoint.decoder.vocab_size, 50)
    positions = torch.arange(50)
    (logits,) = method.execute(
        [torch.from_numpy(tokens)[None], positions, causal_mask(positions, 50)]
    )
    found, expected = logits.numpy().ravel(), reference(checkpoint, tokens).ravel()
    assert np.corrcoef(found, expected)[0, 1] > likeness


def test_training_step_against_autograd(source: Path, bundle: Path) -> None:
    checkpoint = open_checkpoint(source)
    graph = next(graph for graph in Bundle.load(bundle).graphs if graph.role == "training")
    sizes = {tensor.name: [int(size) for size in tensor.shape] for tensor in graph.inputs}
    vocab = checkpoint.decoder.vocab_size
    t, (r, m) = sizes["tokens"][1], sizes["direct_ids"]
    ids = np.stack([RNG.permutation(vocab)[:m] for _ in range(r)])
    ids[:, m // 2 :][RNG.random((r, m - m // 2)) < 0.3] = -1
    positions = torch.arange(t)
    values = {
        "tokens": torch.from_numpy(RNG.integers(0, vocab, (1, t))),
        "positions": positions[None],
        "mask": causal_mask(positions, t),
        "rows": torch.from_numpy(RNG.permutation(t)[:r]),
        "direct_ids": torch.from_numpy(ids),
        "direct_log_p": torch.log_softmax(torch.randn(r, m + 1), -1)[:, :m].contiguous(),
        "direct_weight": torch.rand(r) * (torch.rand(r) < 0.7),
        "direct_tokens": (torch.rand(vocab) < 0.8).float(),
        "label": torch.from_numpy(RNG.integers(0, vocab, r)),
        "label_weight": torch.rand(r) * (torch.rand(r) < 0.5),
    }
    values["direct_tokens"][values["direct_ids"].clamp(min=0)] = 1
    lora = {name: torch.from_numpy(a) for name, a in adapter(checkpoint, RANK).items()}
    assert list(values) + list(lora) == list(sizes)

    from executorch.runtime import Runtime

    method = Runtime.get().load_program(bundle / graph.file).load_method("forward")
    found = method.execute([*values.values(), *lora.values()])

    leaves = {name: tensor.clone().requires_grad_() for name, tensor in lora.items()}
    model = Llama(checkpoint, t, cached=False)
    hidden = model.hidden(values["tokens"], positions, values["mask"], leaves)
    loss_inputs = [values[name] for name in list(values)[4:]]
    loss = hybrid_loss(model.head(hidden[values["rows"]]), *loss_inputs)
    gradients = torch.autograd.grad(loss, list(leaves.values()))
    assert [tensor.name for tensor in graph.outputs] == ["loss", *(f"grad.{n}" for n in lora)]
    torch.testing.assert_close(found[0], loss.detach(), rtol=1e-4, atol=1e-4)
    for name, one, other in zip(lora, found[1:], gradients, strict=True):
        assert other.abs().max() > 0, name
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_undelegated_linears_are_refused() -> None:
    from omnidraft.export.torch_llama.lowering import check_delegated

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    graph = torch.export.export(Plain(), (torch.zeros(1, 4),)).graph_module
    with pytest.raises(OmniDraftError, match="0 of 1 linears"):
        check_delegated(graph, 1)


def test_a_chip_needs_qualcomms_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    with pytest.raises(MissingDependencyError, match="QNN_SDK_ROOT is not set"):
        find_recipe("executorch").check(Options("none", soc="SM8650"))


@pytest.mark.parametrize(
    ("quantization", "reason"),
    # The default is one that a chip has, so only the SDK is missing.
    [(None, "QNN_SDK_ROOT is not set"), ("int8", "computes in float16")],
)
def test_a_chip_has_a_default_of_its_own(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quantization: Any, reason: str
) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    options = Options(quantization, context=CONTEXT, soc="SM8650")
    with pytest.raises(OmniDraftError, match=reason):
        export(str(source), tmp_path / "bundle", "executorch", options)
    assert not (tmp_path / "bundle").exists()


def test_what_the_sdk_cannot_lower_is_not_lowered_to_the_cpu(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sdk" / "lib").mkdir(parents=True)
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path / "sdk"))
    recipe = find_recipe("executorch")
    options = Options("none", lora_rank=2, context=CONTEXT, soc="SM8650")
    recipe.check(options)
    with pytest.raises(OmniDraftError, match="cannot lower the drafter to SM8650"):
        recipe.build(open_checkpoint(source), tmp_path, options, [], lambda *_: None)
    assert not list(tmp_path.glob("*.pte"))


def test_a_training_step_needs_lora() -> None:
    with pytest.raises(OmniDraftError, match="--lora-rank"):
        find_recipe("executorch").check(Options("none", lora_rank=0, train_step=True))
