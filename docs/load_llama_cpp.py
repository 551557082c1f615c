"""Greedy decoding with llama.cpp: python load_llama_cpp.py BUNDLE TEXT [TOKENS] [TARGET]

The bundle is one of ``omnidraft export --backend gguf``. Where TARGET is a GGUF file of the same
vocabulary, it answers, and the bundle drafts for it.
"""

import json
import sys
import urllib.request

import xllamacpp

drafter, text = f"{sys.argv[1]}/model.gguf", sys.argv[2]
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[4] if len(sys.argv) > 4 else drafter
parameters.n_parallel, parameters.n_gpu_layers, parameters.verbosity = 1, 0, 0
if parameters.model.path != drafter:
    kind = xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
    parameters.speculative.types = [kind]
    parameters.speculative.draft.mparams.path = drafter
server = xllamacpp.Server(parameters)
question = {"prompt": text, "temperature": 0, "return_tokens": True}
question["n_predict"] = int(sys.argv[3]) if len(sys.argv) > 3 else 32
place = f"{server.listening_address}/completion"
request = urllib.request.Request(
    place, json.dumps(question).encode(), {"Content-Type": "application/json"}
)
with urllib.request.urlopen(request) as reply:
    answer = json.load(reply)
timings = answer["timings"]
told = {"tokens": answer["tokens"], "text": answer["content"], "drafted": timings.get("draft_n", 0)}
print(json.dumps(told))
