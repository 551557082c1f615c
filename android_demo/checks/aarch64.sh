#!/bin/sh
# Runs the engine's tests on 64-bit Arm, emulated: in a JVM for Arm by qemu-user, with ONNX Runtime's and
# the tokenizers' libraries for Linux on Arm, and our own cross-compiled. It takes an hour or so.
#
#     android_demo/checks/aarch64.sh                        # all tests
#     android_demo/checks/aarch64.sh -Dtest='FilesTest'     # further arguments are Maven's
#
# Debian's packages maven, qemu-user, g++-aarch64-linux-gnu and googletest are needed. The JVM is Debian's,
# unpacked in build/aarch64-root; nothing is installed. OMNIDRAFT_TEST_MODELS names real models; of answers that
# another processor recorded, AnswersTest compares the tokens alone, and prints what else is the same.
set -eu
repository=$(cd "$(dirname "$0")/../.." && pwd)
cd "$repository"
root=$repository/build/aarch64-root
cmake=cmake
[ -x .venv/bin/cmake ] && cmake=.venv/bin/cmake

if [ ! -x "$root/jvm/bin/java" ]; then
    rm -rf "$root"
    apt=$root/apt
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$root/proc" "$root/jvm/bin"
    : >"$apt/status"
    cat >"$apt/apt.conf" <<END
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
Dir::State "$apt";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Debug::NoLocking "true";
END
    APT_CONFIG=$apt/apt.conf apt-get update
    APT_CONFIG=$apt/apt.conf apt-get install --yes --download-only --no-install-recommends openjdk-17-jre-headless
    for package in "$apt"/cache/archives/*.deb; do dpkg -x "$package" "$root"; done
    # Links to the root would lead out of this one.
    find "$root" -type l | while read -r link; do
        to=$(readlink "$link")
        case $to in /*) ln -sfnr "$root$to" "$link" ;; esac
    done
    # ONNX Runtime reads /proc/cpuinfo, and breaks down where it finds an x86 processor's lines.
    for core in $(seq 0 $(($(nproc) - 1))); do
        printf 'processor\t: %s\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\n' "$core"
        printf 'CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd03\nCPU revision\t: 4\n\n'
    done >"$root/proc/cpuinfo"
    # A process that tests start is this script again: the emulator cannot run a program for Arm from within.
    cat >"$root/jvm/bin/java" <<END
#!/bin/sh
exec qemu-aarch64 -cpu cortex-a53 -L "$root" "$root/usr/lib/jvm/java-17-openjdk-arm64/bin/java" \\
    -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Djdk.lang.Process.launchMechanism=FORK "\$@"
END
    chmod +x "$root/jvm/bin/java"
fi

"$cmake" --preset aarch64
"$cmake" --build --preset aarch64 -j2 --target omnidraft_ops omnidraft_jni
export OMNIDRAFT_OPS="$repository/build/aarch64/libomnidraft_ops.so" OMNIDRAFT_JAVA="$root/jvm/bin/java"
mvn -q -f android_demo/engine/pom.xml test -Djvm="$root/jvm/bin/java" "$@"
