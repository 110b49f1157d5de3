#!/bin/bash
# The figures of docs/quality.md on compression, as tables on stdout, and as JSON and plots.
#
#   scripts/eval_compression.sh MODEL.gguf FOLDER [SCORE CHUNK]
#
# First every way to choose what is kept, with and without an archive, on short texts; then SCORE and
# CHUNK (the defaults, unless given) and the simplest ways on long ones. Into FOLDER: choices.json,
# choices.svg, sizes.json, sizes.svg and the tables. Tests for changes may take fewer tokens: LENGTH
# and DECODE_TOKENS in the environment.
# Needs build/release/karez and the texts of scripts/eval_texts.sh.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
if [[ $# -ne 2 && $# -ne 4 ]]; then
  echo "usage: $0 MODEL.gguf FOLDER [SCORE CHUNK]" >&2
  exit 2
fi
model=$1 folder=$2
score=${3:-bidirectional} chunk=${4:-fixed=16}
texts=$root/build/eval-texts
mkdir -p "$folder"

measure() {  # NAME FLAGS...
  local name=$1
  shift
  "$root/build/release/karez" eval -m "$model" --generate \
    --length "${LENGTH:-7904}" --decode-tokens "${DECODE_TOKENS:-1024}" \
    --file "$texts"/{handbook,code,novel,essay}.txt --needles 16 --filler "$texts/filler.txt" \
    --json "$folder/$name.json" --plot "$folder/$name.svg" "$@" | tee "$folder/$name.txt"
}

LENGTH=${LENGTH:-2112} DECODE_TOKENS=${DECODE_TOKENS:-512} measure choices \
  --compress-score all --compress-chunk all --compress-archive off,r4 --compress-keep 0.75,0.5,0.2
measure sizes --compress-score "$score,last-queries,random,recent" --compress-chunk "$chunk" \
  --compress-archive off,r4 --compress-keep 0.75,0.5,0.25,0.2
