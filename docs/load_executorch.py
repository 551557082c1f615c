"""Greedy decoding with plain ExecuTorch: python load_executorch.py BUNDLE TEXT [TOKENS]

The bundle is one of ``omnidraft export --backend executorch --layout llm-runner``.
"""

import json
import sys

import executorch.kernels.quantized  # noqa: F401  (registers the kernels of 8-bit embeddings)
import tokenizers
import torch
from executorch.runtime import Runtime

folder, text = sys.argv[1:3]
left = int(sys.argv[3]) if len(sys.argv) > 3 else 32
program = Runtime.get().load_program(f"{folder}/model.pte")
tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")


def constant(name: str) -> list[int]:
    return program.load_method(name).execute([]) if name in program.method_names else []


ends, (most,) = constant("get_eos_ids"), constant("get_max_seq_len")
new = [*constant("get_bos_id"), *tokenizer.encode(text, add_special_tokens=False).ids]
forward = program.load_method("forward")
position, answer = 0, []
while left and new[-1] not in ends:
    for start in range(0, len(new), most):
        part = new[start : start + most]
        (logits,) = forward.execute([torch.tensor([part]), torch.tensor([position])])
        position += len(part)
    new, left = [int(logits[0, -1].argmax())], left - 1
    answer += new
print(json.dumps({"tokens": answer, "text": tokenizer.decode(answer)}))
