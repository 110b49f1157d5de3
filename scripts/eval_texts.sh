#!/bin/bash
# Fetches the texts of docs/quality.md into build/eval-texts, as plain UTF-8.
#
#   scripts/eval_texts.sh [FOLDER]
#
# They come from Debian packages, which are downloaded and unpacked there and not installed, so no
# root is needed. Files that are there already are kept. Needs apt-get, dpkg-deb and python3.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
folder=${1:-$root/build/eval-texts}
mkdir -p "$folder/packages"
cd "$folder"

# package and, inside it, what the text is made from
unpack() {
  local package=$1
  [[ -d packages/$package ]] && return
  echo "$package: downloading" >&2
  # apt's own sandbox user may not write here; it then says so and goes on.
  (cd packages && apt-get download -qq "$package" 2> download.log) || {
    cat packages/download.log >&2
    echo "eval_texts: $package cannot be downloaded; is apt set up (apt-get update)?" >&2
    exit 1
  }
  rm -rf packages/unpacked
  dpkg-deb -x packages/"${package}"_*.deb packages/unpacked
  mv packages/unpacked "packages/$package"
  rm -f packages/"${package}"_*.deb packages/download.log
}

make_text() {  # NAME PACKAGE KIND SOURCE...
  local name=$1 package=$2 kind=$3
  shift 3
  [[ -s $name.txt ]] && return
  unpack "$package"
  (cd "packages/$package" && python3 "$root/scripts/eval_texts.py" "$kind" "$@") > "$name.part"
  mv "$name.part" "$name.txt"
}

handbook=usr/share/doc/debian-handbook/html/en-US
novels=usr/lib/R/site-library/janeaustenr/data/Rdata

make_text novel r-cran-janeaustenr novel $novels persuasion
make_text filler r-cran-janeaustenr novel $novels northangerabbey
make_text essay anarchism html usr/share/doc/anarchism/html/secA2.html
make_text handbook debian-handbook html \
  $handbook/{network-services,sect.http-web-server,sect.ftp-file-server,sect.nfs-file-server}.html \
  $handbook/{sect.windows-file-server-with-samba,sect.http-ftp-proxy,sect.ldap-directory}.html \
  $handbook/sect.rtc-services.html
make_text code libpython3.11-minimal plain usr/lib/python3.11/argparse.py

wc -c novel.txt filler.txt essay.txt handbook.txt code.txt >&2
