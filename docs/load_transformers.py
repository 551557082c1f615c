"""Greedy decoding with transformers: python load_transformers.py BUNDLE TEXT [TOKENS] [TARGET]

The bundle is one of ``omnidraft export --backend transformers``. Where TARGET is a checkpoint, of
whatever vocabulary, it answers, and the bundle drafts for it.
"""

import json
import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

drafter, text = sys.argv[1:3]
left = int(sys.argv[3]) if len(sys.argv) > 3 else 32
target = sys.argv[4] if len(sys.argv) > 4 else drafter
model = AutoModelForCausalLM.from_pretrained(target)
tokenizer = AutoTokenizer.from_pretrained(target)
assistance = {}
if target != drafter:
    assistance["assistant_model"] = AutoModelForCausalLM.from_pretrained(drafter)
    assistance["assistant_tokenizer"] = AutoTokenizer.from_pretrained(drafter)
    assistance["tokenizer"] = tokenizer
inputs = tokenizer(text, return_tensors="pt")
whole = model.generate(**inputs, max_new_tokens=left, do_sample=False, **assistance)
answer = whole[0, inputs["input_ids"].shape[1] :].tolist()
print(json.dumps({"tokens": answer, "text": tokenizer.decode(answer)}))
