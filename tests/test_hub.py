"""Models of the hub: which files are fetched, what its cache holds, and what is said."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hub import Hub, stand_in_hub
from tiny import write_target

from omnidraft.export.pipeline import find_checkpoint
from omnidraft.runtime.errors import MissingDependencyError, ModelNotFoundError, OmniDraftError
from omnidraft.runtime.models import load_model
from omnidraft.runtime.models.hub import HubName, fetch_hub, hub_name
from omnidraft.runtime.models.resolve import resolve, resolve_checkpoint

TINY = HubName("someone/tiny", None, None)


def ignore(step: str, fraction: float | None) -> None:
    pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "repository"
    folder.mkdir()
    with stand_in_hub(folder, tmp_path / "hub") as hub:
        yield hub


def fill(hub: Hub, *names: str) -> None:
    for name in names:
        (hub.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (hub.folder / name).write_text(f"content of {name}")


def fill_in_parts(hub: Hub, count: int = 3) -> list[str]:
    parts = [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    fill(hub, "config.json", "tokenizer.json", *parts)
    index = {"weight_map": {f"weight.{i}": part for i, part in enumerate(parts)}}
    (hub.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return parts


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_nothing_is_fetched_for_an_engine_that_is_not_installed(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "transformers":
        monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, missing, None)
    fill(hub, "config.json", "tokenizer.json", "model.safetensors")
    with pytest.raises(MissingDependencyError, match=rf"{missing}.*omnidraft\[transformers\]"):
        load_model("someone/tiny", engine="transformers")
    assert hub.got == [] and hub.revisions == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/model", HubName("org/model", None, None)),
        ("org/model@v1.0", HubName("org/model", "v1.0", None)),
        ("org/model@refs/pr/3", HubName("org/model", "refs/pr/3", None)),
        ("org/model:Q4_K_M", HubName("org/model", None, "Q4_K_M")),
        ("org/model@main:a/b.gguf", HubName("org/model", "main", "a/b.gguf")),
        ("model", None),
        ("./org/model", None),
        ("../model", None),
        ("/org/model", None),
        ("~/model", None),
        ("a/b/c", None),
        ("org/", None),
        ("org/model:", None),
        ("org/" + "m" * 5000, None),
        ("org/model:" + "m" * 5000, HubName("org/model", None, "m" * 5000)),
    ],
)
def test_names_of_the_hub(name: str, expected: HubName | None) -> None:
    assert hub_name(name) == expected


def test_a_path_that_is_here_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert hub_name("org/model") is not None
    (tmp_path / "org/model").mkdir(parents=True)
    assert hub_name("org/model") is None


def test_a_model_is_fetched_and_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path / "cache"))
    with stand_in_hub(write_target(tmp_path / "repository"), tmp_path / "hub") as hub:
        path = resolve("someone/tiny")
        assert path.name == "someone--tiny-auto"
        assert load_model("someone/tiny").name == "someone/tiny"
        assert len(hub.got) == len(set(hub.got)) == len(hub.files())
    # Of the download nothing is kept.
    kept = {p.name for p in (tmp_path / "cache/models").iterdir()}
    assert kept == {path.name, f"{path.name}.lock"}
    assert not list(hub.cache.rglob("*.safetensors"))


@pytest.mark.parametrize("name", ["org/" + "m" * 5000, "~nobody-here/model", "org/a\0b"])
def test_a_name_that_cannot_be_a_path(name: str) -> None:
    for find in (resolve, resolve_checkpoint, lambda name: find_checkpoint(name, ignore)):
        with pytest.raises(OmniDraftError):
            find(name)


def test_only_what_makes_a_model_is_fetched(hub: Hub, tmp_path: Path) -> None:
    wanted = ["config.json", "tokenizer.json", "special_tokens_map.json", "model.safetensors"]
    fill(hub, *wanted, "README.md", "consolidated.safetensors", "pytorch_model.bin")
    fill(hub, "onnx/model.onnx", "tokenizer.model", "model.safetensors.index.json", "m-Q8_0.gguf")
    found = fetch_hub(TINY, tmp_path / "download", ignore)
    assert found == tmp_path / "download" and sorted(hub.got) == sorted(wanted)


def test_a_model_without_safetensors(hub: Hub, tmp_path: Path) -> None:
    wanted = ["config.json", "tokenizer.model", "added_tokens.json", "pytorch_model.bin"]
    fill(hub, *wanted, "training_args.bin", "optimizer.bin")
    fetch_hub(TINY, tmp_path / "download", ignore)
    assert sorted(hub.got) == sorted(wanted)


@pytest.mark.parametrize("revision", ["v2", "refs/pr/3", "feature/new.one"])
def test_a_revision(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    monkeypatch.setenv("OMNIDRAFT_CACHE", str(tmp_path / "cache"))
    hub.folder = write_target(tmp_path / "other")
    found = resolve(f"someone/tiny@{revision}")
    assert found.parent == tmp_path / "cache/models" and found.is_dir()
    assert set(hub.revisions) == {revision}


def test_what_the_cache_holds_is_not_fetched(hub: Hub, tmp_path: Path) -> None:
    fill_in_parts(hub)
    hub.lay_in_cache(*hub.files())
    found = fetch_hub(TINY, tmp_path / "download", ignore)
    assert found.is_relative_to(hub.cache) and hub.got == []


@pytest.mark.parametrize("lacking", [[0], [1, 2], "model.safetensors.index.json", "config.json"])
def test_what_the_cache_lacks_is_completed_there(
    hub: Hub, tmp_path: Path, lacking: list[int] | str
) -> None:
    parts = fill_in_parts(hub)
    missing = {parts[i] for i in lacking} if isinstance(lacking, list) else {lacking}
    hub.lay_in_cache(*(set(hub.files()) - missing))
    # Without the index, the parts' own names tell how many there are: nothing is missing.
    if lacking == "model.safetensors.index.json":
        missing = set()
    found = fetch_hub(TINY, tmp_path / "download", ignore)
    assert found.is_relative_to(hub.cache) and set(hub.got) == missing
    assert not (tmp_path / "download").exists()
    assert {p.name for p in found.iterdir()} >= {*parts, "config.json"}


@pytest.mark.parametrize("form", ["model.safetensors", "pytorch_model.bin"])
def test_a_tokenizer_that_the_cache_lacks(hub: Hub, tmp_path: Path, form: str) -> None:
    """As whoever loads a model without its tokenizer leaves the cache."""
    fill(hub, "config.json", "tokenizer.json", "tokenizer_config.json", form)
    hub.lay_in_cache("config.json", form)
    found = fetch_hub(TINY, tmp_path / "download", ignore)
    assert set(hub.got) == {"tokenizer.json", "tokenizer_config.json"}
    assert found.is_relative_to(hub.cache) and (found / "tokenizer.json").is_file()


def test_offline_what_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "repository").mkdir()
    with stand_in_hub(tmp_path / "repository", tmp_path / "hub", offline=True) as hub:
        with pytest.raises(ModelNotFoundError, match="someone/tiny cannot be fetched"):
            fetch_hub(TINY, tmp_path / "download", ignore)
        parts = fill_in_parts(hub)
        hub.lay_in_cache(*(set(hub.files()) - {parts[1]}))
        with pytest.raises(ModelNotFoundError, match=f"someone/tiny.* lacks {parts[1]}") as error:
            fetch_hub(TINY, tmp_path / "download", ignore)
        assert "damaged" not in str(error.value) and parts[0] not in str(error.value)
        hub.lay_in_cache(parts[1])
        assert fetch_hub(TINY, tmp_path / "download", ignore).is_relative_to(hub.cache)


def test_a_checkpoint_as_it_is_lies_in_the_hubs_own_cache(hub: Hub) -> None:
    fill(hub, "config.json", "tokenizer.json", "model.safetensors")
    assert resolve_checkpoint("someone/tiny").is_relative_to(hub.cache)
    assert resolve_checkpoint("someone/tiny").is_relative_to(hub.cache)
    assert len(hub.got) == 3


PARTS = ["F16/tiny-F16-00001-of-00002.gguf", "F16/tiny-F16-00002-of-00002.gguf"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("Q4_K_M", ["tiny-Q4_K_M.gguf"]),
        ("q4_k_m", ["tiny-Q4_K_M.gguf"]),
        ("tiny-Q8_0.gguf", ["tiny-Q8_0.gguf"]),
        ("F16", PARTS),
        *((part, PARTS) for part in PARTS),
        ("tiny-F16-00002-of-00002", PARTS),
        ("F16/tiny-F16", PARTS),
        # What is called so, though another begins so.
        ("Q8_0", ["tiny-Q8_0.gguf"]),
        ("tiny-q4_0", ["tiny-Q4_0.GGUF"]),
        ("tiny-Q4_0.GGUF", ["tiny-Q4_0.GGUF"]),
        ("4_8", ["tiny-Q4_0_4_8.gguf"]),
    ],
)
def test_one_of_several_gguf_files(
    hub: Hub, tmp_path: Path, asked: str, expected: list[str]
) -> None:
    fill(hub, "tiny-Q4_K_M.gguf", "tiny-Q4_K_S.gguf", "tiny-Q8_0.gguf", "mmproj-F16.gguf")
    fill(hub, "tiny-Q8_0-long.gguf", "tiny-Q4_0.GGUF", "tiny-Q4_0_4_8.gguf", "config.json", *PARTS)
    found = fetch_hub(HubName("someone/tiny", None, asked), tmp_path / "download", ignore)
    assert found == tmp_path / "download" / expected[0]
    assert sorted(hub.got) == expected


def test_which_gguf_files_there_are_is_said(hub: Hub, tmp_path: Path) -> None:
    fill(hub, "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf", "tiny-Q8_0-long.gguf")
    for asked in (None, "Q5_K_M"):
        with pytest.raises(ModelNotFoundError, match=r"someone/tiny:Q4_K_M, someone/tiny:Q8_0"):
            fetch_hub(HubName("someone/tiny", None, asked), tmp_path / "download", ignore)
    with pytest.raises(ModelNotFoundError, match="3 GGUF files"):
        fetch_hub(HubName("someone/tiny", None, "tiny"), tmp_path / "download", ignore)
    assert hub.got == []


def test_every_choice_that_is_named_is_one(hub: Hub, tmp_path: Path) -> None:
    for number, names in enumerate(
        [
            ["a/model.gguf", "b/model.gguf", "c/model-00001-of-00001.gguf"],
            ["tiny-Q8_0.gguf", "tiny-Q8_0-long.gguf", "tiny-Q8_0-longer.GGUF"],
            ["tiny.gguf", "tiny-Q8_0.gguf"],
        ]
    ):
        hub.folder = tmp_path / f"repository{number}"
        fill(hub, *names)
        with pytest.raises(ModelNotFoundError, match="GGUF files") as error:
            fetch_hub(TINY, tmp_path / "download", ignore)
        said = str(error.value).partition("Name one of them: ")[2].removesuffix(".").split(", ")
        chosen = {hub_name(each) for each in said}
        fetched = {
            fetch_hub(each, tmp_path / f"download{number}", ignore) for each in chosen if each
        }
        assert len(chosen) == len(fetched) == len(names)


def test_a_repository_with_one_gguf_file(hub: Hub, tmp_path: Path) -> None:
    fill(hub, "README.md", "tiny-Q8_0.gguf")
    found = fetch_hub(TINY, tmp_path / "download", ignore)
    assert found.name == "tiny-Q8_0.gguf" and hub.got == ["tiny-Q8_0.gguf"]


def test_failures_are_clear(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    with pytest.raises(ModelNotFoundError, match="neither a config"):
        fetch_hub(TINY, tmp_path / "download", ignore)
    fill(hub, "config.json")
    with pytest.raises(ModelNotFoundError, match="save_pretrained"):
        fetch_hub(TINY, tmp_path / "download", ignore)
    fill(hub, "model.safetensors")

    def full(**options: object) -> str:
        if options.get("local_files_only"):
            raise FileNotFoundError
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(OmniDraftError, match="full"):
        fetch_hub(TINY, tmp_path / "download", ignore)
