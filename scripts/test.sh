#!/usr/bin/env bash
# Sets up what the tests need, builds, and runs every test:
#   optimised: the tests on the models, with real clients, of the kernels, and the random ones;
#   under AddressSanitizer and UndefinedBehaviorSanitizer: unit tests, and the random ones again;
#   under ThreadSanitizer: what runs on several threads; and the format of the sources.
# All but --quick compiles several sources at a time (cmake/unity.cmake), in builds of its own.
#
#   scripts/test.sh          everything (less than an hour on 2 cores after set-up)
#   scripts/test.sh --quick  unit tests only
#
# Every part runs even if one before it has failed; the exit status is 0 only if all passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

quick=0
case "${1:-}" in
  "") ;;
  --quick) quick=1 ;;
  -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "test.sh: unknown argument '$1'; allowed: --quick, --help" >&2; exit 2 ;;
esac

bash scripts/setup.sh --tests

jobs=$(nproc)
results=()
failures=()
failed=0
# part NAME COMMAND...: runs it and notes how it ended and how long it took.
part() {
  local name=$1 start=$SECONDS word=passed
  shift
  printf '\n== %s\n' "$name"
  "$@" || { word=FAILED; failed=1; }
  results+=("$(printf '%-34s %-7s %4d s' "$name" "$word" $((SECONDS - start)))")
}

# build PRESET [TARGET...]: with clang for sanitizers, if it is there. Without optimisation it compiles
# twice as fast as g++, and it warns of other things.
build() {
  local preset=$1 compiler=()
  shift
  if [[ $preset == ?san ]] && command -v clang++-19 > /dev/null; then
    compiler=(-DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19)
    grep -qs '^CMAKE_CXX_COMPILER:.*clang++-19$' "build/$preset/CMakeCache.txt" || rm -rf "build/$preset"
  fi
  cmake --preset "$preset" -DKAREZ_BUILD_TESTS=ON "${compiler[@]}" > "build/$preset-configure.log" \
    || { cat "build/$preset-configure.log"; return 1; }
  NINJA_STATUS='[%f/%t %es] ' cmake --build "build/$preset" --parallel "$jobs" ${1:+--target "$@"}
}
# run PRESET CTEST_ARGUMENTS...: notes what the failed tests said, for the summary.
run() {
  local log=build/$1-tests.log
  if ctest --test-dir "build/$1" --output-on-failure --no-tests=error --timeout 900 "${@:2}" \
      2>&1 | tee "$log"; then
    return
  fi
  failures+=("$log")
  return 1
}
# The output of the failed tests in a log of CTest, at most 60 lines of each.
show_failures() {
  printf '\n== what failed in %s\n' "$1"
  awk '/^ *[0-9]+\/[0-9]+ Test / { shown = /\*\*\*/ ? 60 : 0 }
       /^ *Start +[0-9]+: / || /tests passed,/ { shown = 0 }
       shown-- > 0' "$1"
  sed -n '/^The following tests FAILED/,$p' "$1"
}
run_unit() {
  build dev karez_fast_tests && run dev -L '^unit$' -j "$jobs"
}
run_optimised() {
  # Of the unit tests only unit_attention: the others were not built.
  build test karez_optimised_tests && run test -E '^(unit_[^a]|property_tier)' -j "$jobs"
}
run_asan() {
  # Attention without optimisation is slow: what selects is left to the optimised tests at the levels of
  # the processor between the first and the last two.
  local levels='unit_attention\.All/(ArchivedContext|CompressedContext|SparseAttention)\..*/(avx2|avx512)_(f32|bf16|q8_0)$'
  build asan karez_fast_tests && run asan -L '^(unit|property)$' -E "$levels" -j "$jobs"
}
# Only what has threads of its own is built for TSan. Not the server: Asio orders memory by fences, and
# not tests with a model: ggml's threads meet at OpenMP's barriers. TSan sees neither.
run_tsan() {
  build tsan unit_attention unit_kv_tier unit_kv_store property_tier unit_engine \
    && run tsan -R '^(unit_attention|unit_kv_tier|unit_kv_store|property_tier)\.|^unit_engine\.Engine(Test|Options|Store|Tiers\.(Choices|ATierThatFails))' -j "$jobs"
}
check_format() {
  git ls-files -z '*.h' '*.cpp' | xargs -0 clang-format --dry-run -Werror
}

mkdir -p build
if ((quick)); then
  part "unit tests" run_unit
else
  part "format" check_format
  part "optimised" run_optimised
  # The libraries that Karez links are not instrumented, so their own leaks are not ours to find.
  export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1
  export UBSAN_OPTIONS=print_stacktrace=1
  export UCX_MEM_EVENTS=n  # its hooks of memory calls and those of the sanitizers crash each other
  part "AddressSanitizer and UBSan" run_asan
  part "ThreadSanitizer" run_tsan
fi

for log in "${failures[@]}"; do show_failures "$log"; done
printf '\n== summary\n'
printf '   %s\n' "${results[@]}"
exit "$failed"
