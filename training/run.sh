#!/bin/bash
# The recipe of the shipped drafter, on one machine with any number of GPUs (four were used).
#   run.sh GGUF TOKENIZER PROMPTS_DIR WORK_DIR
set -euo pipefail
gguf=$1 tokenizer=$2 prompts=$3 work=$4
here=$(cd "$(dirname "$0")" && pwd)
gpus=$(nvidia-smi -L | wc -l)
common=(--gguf "$gguf" --tokenizer "$tokenizer")

sample() { # NAME FIRST_SEED SECONDS: one sampler a GPU, then the canonical re-tokenisation
    mkdir -p "$work/$1"
    for ((r = 0; r < gpus; r++)); do
        CUDA_VISIBLE_DEVICES=$r python3 "$here/sample.py" --gguf "$gguf" --seed $(($2 + r)) \
            --out "$work/$1/shard$r.pt" --seconds "$3" &
    done
    wait
    python3 "$here/prepare.py" "${common[@]}" --shards "$work/$1"/shard*.pt \
        --out "$work/$1/canonical.pt" --workers "$(nproc)"
}

train() { # NAME OPTIONS...: one GPU
    local name=$1
    shift
    python3 "$here/train.py" "${common[@]}" --shards "$work/$name"/shard*.pt \
        --canonical "$work/$name/canonical.pt" --greedy "$work/greedy.jsonl" \
        --out "$work/$name/drafter" --mode soft "$@"
}

mkdir -p "$work"
python3 "$here/sample.py" --gguf "$gguf" --seconds 0 --out "$work/unused" \
    --prompts "$prompts" --greedy-out "$work/greedy.jsonl"
sample first 0 150
train first --whole --rate 3e-3 --seconds 470
sample second 100 45
train second --init "$work/first/drafter" --rate 1e-3 --sharpen 0.7 --seconds 117
int8() { # NAME OUT OPTIONS...
    python3 "$here/export_int8.py" --drafter "$work/$1/drafter" --tokenizer "$tokenizer" --out "$2" "${@:3}"
}
int8 second "$work/second/int8"
sample third 300 230
train third --init "$work/second/int8" --rate 1.5e-3 --sharpen 0.7 --grid --coarse 1 --seconds 430
int8 third "$work/third/int8" --grid
python3 "$here/frequent_first.py" --drafter "$work/third/int8" --drafted 12288 --out "$work/drafter"
