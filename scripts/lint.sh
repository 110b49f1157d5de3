#!/usr/bin/env bash
# clang-format and clang-tidy over the sources. Needs: apt-get install clang-format clang-tidy
#
#   scripts/lint.sh [FILE.cpp...]   these files; without arguments all of src/
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ "${1:-}" == -h || "${1:-}" == --help ]]; then sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 0; fi
for program in clang-format clang-tidy run-clang-tidy; do
  command -v "$program" > /dev/null \
    || { echo "lint.sh: no $program; apt-get install clang-format clang-tidy" >&2; exit 1; }
done

git ls-files -z '*.h' '*.cpp' | xargs -0 clang-format --dry-run -Werror

if [[ ! -e build/dev/compile_commands.json ]]; then cmake --preset dev > /dev/null; fi
patterns=("^$PWD/src/.*\.cpp\$")
if (($# > 0)); then
  patterns=()
  for file in "$@"; do patterns+=("^$(realpath "$file")\$"); done
fi
run-clang-tidy -quiet -p build/dev -j "$(nproc)" "${patterns[@]}" 2> /dev/null
