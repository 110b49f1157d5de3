#!/usr/bin/env bash
# From nothing to an answer: installs what is missing, builds build/release/karez, and lets a small
# model answer a question about a licence text that is on every Debian machine.
#
#   scripts/quickstart.sh [-- ARGUMENTS OF karez generate]
#
# Arguments after -- go to the command in place of ours, for example -- --temp 0.7 -n 50
# The first run takes 5 to 10 minutes on 2 cores, most of it building ggml; the next ones start at
# once.
set -euo pipefail
called_in=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "${1:-}" in
  "") ;;
  --) shift ;;
  -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "quickstart.sh: unknown argument '$1'; put arguments of karez generate after --" >&2; exit 2 ;;
esac

bash scripts/setup.sh

# One line of progress from the output of a build; nothing at all if there was nothing to build.
# Everything else that is printed, such as an error, passes through.
show_build() {
  local line started=0
  while IFS= read -r line; do
    case "$line" in
      *"Re-checking globbed"* | *"Re-running CMake"* | "ninja: "* | "-- "*) ;;
      "["[0-9]*"/"[0-9]*"] "*)
        if ((!started)); then echo "== building karez (2 to 5 minutes on 2 cores)" >&2; fi
        started=1
        if [[ -t 2 ]]; then printf '   %s\033[K\r' "${line%%] *}]" >&2; fi
        ;;
      *) printf '%s\n' "$line" >&2 ;;
    esac
  done
  if [[ -t 2 ]] && ((started)); then printf '\033[K' >&2; fi
}

if [[ ! -e build/release/build.ninja ]]; then
  log=build/release-configure.log
  cmake --preset release -DKAREZ_BUILD_TESTS=OFF > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
cmake --build build/release --target karez --parallel "$(nproc)" 2>&1 | show_build

# 4,000 tokens of text; the question stands after it.
text=/usr/share/common-licenses/GPL-2
question="What is this text about? Answer in two sentences."
if [[ ! -r "$text" ]]; then
  echo "== this is not Debian: the question is about this repository's own pages instead" >&2
  text=$PWD/build/pages.txt
  cat README.md docs/architecture.md docs/contracts.md > "$text"
fi

root=$PWD
# Of a flag that is given twice the last one counts, so the user's come last.
command=("$root/build/release/karez" generate -m "$root/models/SmolLM2-135M-Instruct.Q4_1.gguf"
  -f "$text" -p "$question" -n 200 --temp 0 --repeat-penalty 1.1)
# The prompt's KV is about 90 MiB: the fast tier gets less than a quarter, the rest lives in host
# memory. Only for the model and the text that this is true of.
own_input=0
for argument in "$@"; do
  case "$argument" in
    -m* | --model* | -f* | --file* | --kv-* | --token-budget*) own_input=1 ;;
  esac
done
if ((!own_input)); then
  command+=(--token-budget 1024 --kv-fast-bytes 22MiB --kv-host-bytes 512MiB)
fi
command+=("$@")
printf '== %s\n' "$(printf '%q ' "${command[@]}")" >&2
cd "$called_in"
exec "${command[@]}"
