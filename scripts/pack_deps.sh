#!/usr/bin/env bash
# Unpacks the libraries that sluice builds with into a folder, for a machine that can install nothing:
# no root, or no network. Needs apt-get (not root) on the machine that packs.
#
#   scripts/pack_deps.sh deps          here; then take the folder along
#   SLUICE_DEPS=$PWD/deps make core    there
set -euo pipefail

folder=${1:?usage: scripts/pack_deps.sh FOLDER}
packages=(libgtest-dev libbenchmark-dev libbenchmark1debian libcli11-dev libtomlplusplus-dev
  libtomlplusplus3 nlohmann-json3-dev libfmt-dev libfmt9 libxxhash-dev libxxhash0)
mkdir -p "$folder"
folder=$(realpath "$folder")
download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
(cd "$download" && apt-get download -qq "${packages[@]}")
for package in "$download"/*.deb; do dpkg -x "$package" "$folder"; done
rm -rf "$folder/usr/share/doc" "$folder/usr/share/man" "$folder/usr/src"
du -sh "$folder"
