#!/usr/bin/env bash
# Installs what the end-to-end tests need: the openai package into build/e2e-venv, and Debian's
# chromium, curl and openssl. Safe to run at any time.
#
#   tests/e2e/setup.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

missing=()
for package in chromium curl openssl python3-venv; do
  if [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" != installed ]]; then
    missing+=("$package")
  fi
done
if ((${#missing[@]})); then
  as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends "${missing[@]}"
fi
if [[ ! -x build/e2e-venv/bin/pip ]]; then
  rm -rf build/e2e-venv
  python3 -m venv build/e2e-venv
fi
build/e2e-venv/bin/pip install -q --disable-pip-version-check -r tests/e2e/requirements.txt
