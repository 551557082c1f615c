#!/bin/sh
# The native tests for 64-bit Arm under an emulator, as processors with i8mm, with dot products only
# and with neither: `make test-aarch64`.
set -eu
cd "$(dirname "$0")/.."

missing=
need() {
  if ! [ -e "$2" ] && ! command -v "$2" >/dev/null; then
    missing="$missing $1"
    echo "$2 is missing; Debian's package $1 brings it" >&2
  fi
}
need g++-aarch64-linux-gnu aarch64-linux-gnu-g++
need qemu-user qemu-aarch64
need googletest /usr/src/googletest/CMakeLists.txt
if [ -n "$missing" ]; then
  echo "The tests for 64-bit Arm did not run: apt-get install$missing" >&2
  exit 1
fi

cmake --preset aarch64 -DCMAKE_MESSAGE_LOG_LEVEL=WARNING
cmake --build --preset aarch64
echo "64-bit Arm with i8mm:"
QEMU_CPU=max ctest --preset aarch64 --parallel 2
# Only products of integers choose their instructions at run time.
for processor in neoverse-n1 cortex-a53; do
  echo "64-bit Arm as $processor:"
  QEMU_CPU=$processor ctest --preset aarch64 --parallel 2 --tests-regex 'Linear|Recorded'
done
