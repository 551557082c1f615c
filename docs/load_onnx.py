"""Greedy decoding with plain ONNX Runtime: python load_onnx.py BUNDLE TEXT [TOKENS]"""

import json
import sys

import numpy as np
import onnxruntime as ort
import tokenizers

folder, text = sys.argv[1:3]
left = int(sys.argv[3]) if len(sys.argv) > 3 else 32
ort.set_default_logger_severity(3)
session = ort.InferenceSession(f"{folder}/model.onnx")
tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
about = session.get_modelmeta().custom_metadata_map
special = json.loads(about["omnidraft.special_tokens"])

new = tokenizer.encode(text, add_special_tokens=False).ids
if special["beginning"] is not None:
    new = [special["beginning"], *new]
shapes = {i.name: i.shape for i in session.get_inputs() if i.name.startswith("past.")}
cache = {name: np.zeros((1, heads, 0, size), "f4") for name, (_, heads, _, size) in shapes.items()}
outputs = ["logits", *(name.replace("past", "present") for name in cache)]
length, answer = 0, []
while left and not special["ends"].count(new[-1]):
    length, left = length + len(new), left - 1
    inputs = {
        "tokens": np.array([new], np.int64),
        "last_position": np.array([length - 1], np.int32),
        "total_length": np.array(length, np.int32),
        "first_row": np.array([len(new) - 1], np.int64),
    }
    logits, *present = session.run(outputs, inputs | cache)
    cache = dict(zip(cache, present, strict=True))  # it grew
    new = [int(logits[0, -1].argmax())]
    answer += new
print(json.dumps({"tokens": answer, "text": tokenizer.decode(answer)}))
