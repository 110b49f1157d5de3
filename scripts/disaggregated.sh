#!/usr/bin/env bash
# Prefill and decode in different processes, on this machine: starts a server that prefills, one that
# decodes and a router in front of them, asks the question of scripts/quickstart.sh through the
# router, shows the answer and what moved, and stops everything.
#
#   scripts/disaggregated.sh [full | sparse] [-- MORE FLAGS OF THE DECODING SERVER]
#
# sparse (default): the decoding server takes in what it reads. full: the whole KV, dense attention.
# For example: scripts/disaggregated.sh full -- --kv-load-failure recompute
# KAREZ, MODEL and TEXT name another program, model and text to ask about. Logs: build/disaggregated/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A producer keeps what it hands over below its fast tier; nodes that share KV have the same index.
admit=sparse
case "${1:-}" in
  full | sparse) admit=$1; shift ;;
esac
attention=()
home=()
if [[ $admit == sparse ]]; then
  attention=(--token-budget 512)
  home=(--kv-host-bytes 256MiB)
fi
case "${1:-}" in
  "") ;;
  --) shift ;;
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "disaggregated.sh: unknown argument '$1', allowed are full and sparse; put flags of the decoding server after --" >&2
     exit 2 ;;
esac

karez=${KAREZ:-build/release/karez}
model=${MODEL:-models/SmolLM2-135M-Instruct.Q4_1.gguf}
for file in "$karez" "$model"; do
  if [[ ! -e "$file" ]]; then
    echo "disaggregated.sh: there is no $file; scripts/quickstart.sh makes it" >&2
    exit 1
  fi
done
text=${TEXT:-/usr/share/common-licenses/GPL-2}
if [[ -z "${TEXT:-}" && ! -r "$text" ]]; then text=docs/architecture.md; fi

logs=build/disaggregated
mkdir -p "$logs"
pids=()
stop_all() {
  local pid
  for pid in "${pids[@]}"; do kill "$pid" 2> /dev/null || true; done
  wait
}
trap stop_all EXIT

# start NAME ARGUMENTS...: in the background; sets url once it listens.
start() {
  local name=$1 log="$logs/$1.log"
  shift
  : > "$log"  # the loop below reads it, perhaps before the process has begun
  "$karez" "$@" --port 0 > "$log" 2>&1 &
  pids+=($!)
  url=
  # A server says where it is once it has its model, however large that is.
  while kill -0 "${pids[-1]}" 2> /dev/null; do
    url=$(sed -n 's/^karez: .* at \(http:[^ ]*\) .*/\1/p' "$log" | head -n 1)
    if [[ -n "$url" ]]; then break; fi
    sleep 0.1
  done
  if [[ -z "$url" ]]; then
    echo "disaggregated.sh: $name did not start:" >&2
    cat "$log" >&2
    exit 1
  fi
  echo "== $name: $url" >&2
}

fetch() {
  python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read().decode())' "$1"
}

# Until a router has a node.
wait_for_health() {
  local tries
  for ((tries = 0; tries < 600; ++tries)); do
    if fetch "$1/health" > /dev/null 2>&1; then return; fi
    sleep 0.1
  done
  echo "disaggregated.sh: $1 is not healthy after a minute; its log is in $logs/" >&2
  exit 1
}

start prefill serve -m "$model" --kv-role kv_producer --kv-port 0 --kv-host-bytes 1GiB "${attention[@]}"
prefill=$url
start decode serve -m "$model" --kv-role kv_consumer --kv-port 0 --kv-admit "$admit" \
  "${attention[@]}" "${home[@]}" "$@"
decode=$url
start router route --prefill "$prefill" --decode "$decode"
router=$url
wait_for_health "$router"

python3 - "$router" "$text" << 'EOF'
import json
import sys
import urllib.request

router, text = sys.argv[1:]
question = "What is this text about? Answer in two sentences."
with open(text, encoding="utf-8") as file:
    content = file.read() + "\n\n" + question
body = {"messages": [{"role": "user", "content": content}], "stream": True, "max_tokens": 200,
        "temperature": 0, "repeat_penalty": 1.1, "stream_options": {"include_usage": True}}
request = urllib.request.Request(router + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
usage = {}
with urllib.request.urlopen(request) as answer:
    for line in answer:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            sys.exit(f"disaggregated.sh: {event['error']['message']}")
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            print(choice["delta"].get("content", ""), end="", flush=True)
print()
print("==", json.dumps(usage), file=sys.stderr)
EOF

echo "== what moved:" >&2
for part in prefill decode router; do
  fetch "${!part}/metrics" | sed -n "s/^\(karez_\(kv_export\|kv_admit\|kv_peer\|route_hand_overs\|route_prefill\|route_decode_alone\)[^ ]* .*\)/   $part: \1/p" >&2
done
