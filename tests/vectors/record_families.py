"""python tests/vectors/record_families.py: record what transformers makes of every family.

It needs torch and transformers. A change in what it writes is a change of what is expected.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from families import COLUMNS, FAMILIES, LOGITS, RECORDED, SIZES, recorded, tokens_of, write_folder


def main() -> None:
    records = {}
    for name, family in FAMILIES.items():
        config = transformers.AutoConfig.for_model(family.model_type, **(SIZES | family.change))
        model = transformers.AutoModelForCausalLM.from_config(config)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            written = json.loads((Path(folder) / "config.json").read_text())
        written.pop("transformers_version", None)
        tied = (
            set(getattr(model, "_tied_weights_keys", None) or ())
            if config.tie_word_embeddings
            else set()
        )
        shapes = {key: list(t.shape) for key, t in model.state_dict().items() if key not in tied}
        records[name] = {"config": written, "shapes": shapes}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(r)}" for name, r in records.items())
    RECORDED.write_text("{\n" + lines + "\n}\n")
    recorded.cache_clear()
    logits = {}
    for name in FAMILIES:
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            model = transformers.AutoModelForCausalLM.from_pretrained(
                write_folder(name, Path(folder) / "source"),
                attn_implementation="eager",
                dtype="float32",
            )
            logits[name] = (
                model.eval()(torch.tensor(tokens_of()[None])).logits[0].numpy()[:, COLUMNS]
            )
    np.savez_compressed(LOGITS, **logits)


if __name__ == "__main__":
    main()
