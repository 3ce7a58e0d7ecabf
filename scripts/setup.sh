#!/usr/bin/env bash
# Fetches and builds what gomflux needs into .setup; see usage below.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/setup.sh [--backend cuda13 [--with-nvidia]] [--with-macos] [--list]

Fetches MLX, builds its C API (mlx-c) and the tokenizer library, and leaves
  .setup/lib/libmlxc.so (.dylib)  the C API; it finds MLX in mlx/ beside it
  .setup/lib/libtokenizers.a      the tokenizers, linked into the binary
  .setup/include/mlx/c/*.h        the headers that the bindings are made from
Steps that are done are skipped. Versions and checksums: scripts/setup/.

  --backend cuda13  also put MLX's CUDA 13 build (Linux) into .setup/cuda13.
                    To use it: GOMFLUX_MLX=.setup/cuda13/lib
  --with-nvidia     with it, also fetch NVIDIA's libraries of
                    scripts/setup/cuda13.txt (cuBLAS, cuDNN, NCCL, ...; some
                    gigabytes). Without, the system's loader must find them,
                    for example through LD_LIBRARY_PATH.
  --with-macos      also unpack MLX for macOS 15 and for 26.2 into .setup/macos,
                    from which make dist makes the archive for all Macs
  --list            print the wheels of MLX that set-up uses here, and end
EOF
}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
here=scripts/setup
setup=$root/.setup
build=$setup/build
. "$here/versions"

say() { echo "set-up: $*" >&2; }
die() { say "$@"; exit 1; }
logged() { # log command...: its output goes to the log, and is shown if it fails
  local log=$1
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "failed: $* (all of its output: $log)"
  fi
}
have() { command -v "$1" >/dev/null 2>&1; }

backend=
with_nvidia=
with_macos=
list=
while [ $# -gt 0 ]; do
  case $1 in
    --backend) [ $# -ge 2 ] || die "--backend needs a value: cuda13"; backend=$2; shift ;;
    --backend=*) backend=${1#*=} ;;
    --with-nvidia) with_nvidia=yes ;;
    --with-macos) with_macos=yes ;;
    --list) list=yes ;;
    -h | --help) usage; exit ;;
    *) usage >&2; die "unknown argument: $1" ;;
  esac
  shift
done
case $backend in
  '' | cpu | metal | cuda13) ;;
  *) die "no such backend: $backend (there is cuda13; the default is Metal on macOS, the CPU on Linux)" ;;
esac
if [ -n "$with_nvidia" ] && [ "$backend" != cuda13 ]; then
  die "--with-nvidia goes with --backend cuda13"
fi

# Which of MLX's wheels this machine takes.
case $(uname -s)-$(uname -m) in
  Linux-x86_64 | Linux-aarch64)
    wheel=mlx-cpu
    platform=manylinux_2_35_$(uname -m)
    lib=so
    ;;
  Darwin-arm64)
    wheel=mlx-metal
    lib=dylib
    macos=$(sw_vers -productVersion)
    # The wheel for macOS 26 has the kernels for the M5's neural accelerators,
    # and its libraries open on 26.2 and newer only.
    case $macos in
      14 | 14.*) platform=macosx_14_0_arm64 ;;
      [0-9] | [0-9].* | 1[0-3] | 1[0-3].*) die "MLX needs macOS 14 or newer, this is $macos" ;;
      1[5-9] | 1[5-9].* | 2[0-5] | 2[0-5].* | 26 | 26.[01] | 26.[01].*) platform=macosx_15_0_arm64 ;;
      *) platform=macosx_26_0_arm64 ;;
    esac
    ;;
  Darwin-x86_64) die "MLX needs an Apple chip; if this Mac has one, this shell runs in Rosetta: use arch -arm64 zsh" ;;
  *) die "MLX has no build for $(uname -sm): it runs on Linux (x86_64, aarch64) and on Macs with Apple chips" ;;
esac
if [ "$backend" = cuda13 ] && [ $lib != so ]; then die "CUDA is for Linux only"; fi
if [ "$backend" = cpu ] && [ $lib != so ]; then die "on macOS MLX comes with Metal"; fi
if [ "$backend" = metal ] && [ $lib = so ]; then die "Metal is for macOS only"; fi

# A step that is done leaves a stamp that says what it was made from.
files_sum() { cat "$@" | cksum | cut -d' ' -f1; }
wheel_sum() { # distribution [platform]: the pinned sha256 of its wheel
  local name=SHA256_$1_${2:-$platform}
  name=${name//-/_}
  echo "${!name}"
}
is_done() { # step key file: file is what the step leaves
  [ "$(cat "$setup/stamps/$1" 2>/dev/null)" = "$2" ] && [ -e "$setup/$3" ]
}
undo() { rm -f "$setup/stamps/$1"; }
stamp() { # the parts are in place: say so, in one move
  mkdir -p "$setup/stamps"
  echo "$2" >"$setup/stamps/.$1"
  mv "$setup/stamps/.$1" "$setup/stamps/$1"
}

mlx_key="$wheel $MLX_VERSION $platform $(wheel_sum $wheel)"
mlxc_key="mlx-c $(files_sum $here/mlxc/{CMakeLists.txt,Cargo.lock,Cargo.toml,cuda_kernel.cpp,cuda_kernel.h,compat.h}) for $mlx_key"
tokenizers_key="tokenizers $TOKENIZERS_VERSION $TOKENIZERS_SUM $(uname -sm)"
macos_platforms="macosx_15_0_arm64 macosx_26_0_arm64"
macos_key=
if [ -n "$with_macos" ]; then
  macos_key="mlx-metal $MLX_VERSION"
  for p in $macos_platforms; do macos_key="$macos_key $p $(wheel_sum mlx-metal "$p")"; done
fi
cuda_key=
nvidia_key=
if [ "$backend" = cuda13 ]; then
  cuda_key="mlx-cuda-13 $MLX_VERSION $platform $(wheel_sum mlx-cuda-13) with $mlxc_key"
  if [ -n "$with_nvidia" ]; then nvidia_key="nvidia $(files_sum $here/cuda13.txt) $platform"; fi
fi

mlx_done() { is_done mlx "$mlx_key" lib/mlx; }
mlxc_done() { is_done mlxc "$mlxc_key" lib/libmlxc.$lib; }
tokenizers_done() { is_done tokenizers "$tokenizers_key" lib/libtokenizers.a; }
cuda13_done() { [ -z "$cuda_key" ] || is_done cuda13 "$cuda_key" cuda13/lib/mlx; }
macos_done() { [ -z "$macos_key" ] || is_done macos "$macos_key" macos; }
clang_done() { [ -z "${GOMFLUX_TEST_KERNELS-}" ] || have clang; } # which one of the tests of kernels runs
nvidia_done() { [ -z "$nvidia_key" ] || is_done nvidia "$nvidia_key" cuda13/lib/nvidia; }

# What must be on the machine before the steps.
missing=() # toolchains that set-up cannot install
packages=() # Debian's packages that it can

at_least() { # version minimum
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -t. -k1,1n -k2,2n -k3,3n | head -n 1)" = "$2" ]
}
number() { sed -n 's/^[^0-9]*\([0-9][0-9.]*\).*/\1/p' | head -n 1; }
check_version() { # name minimum found, which is empty where there is none
  if [ -z "$3" ]; then
    missing+=("$1 $2 or newer")
  elif ! at_least "$3" "$2"; then
    missing+=("$1 $2 or newer (found $3)")
  fi
}

compiler=${CXX:-c++} # may hold options
preprocess() { $compiler -E -dM -x c++ "$@" - 2>/dev/null; }
has_format() {
  preprocess -std=c++20 >/dev/null <<'EOF'
#if !__has_include(<format>) && !__has_include(<fmt/format.h>)
#error
#endif
EOF
}
has_openblas() { PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep 'libopenblas\.so\.0' >/dev/null; }
has_pip() { python3 -m pip --version >/dev/null 2>&1; }

check_packages() {
  have cmake || packages+=(cmake)
  have make || packages+=(make)
  have "${compiler%% *}" || packages+=(g++)
  has_format || packages+=(libfmt-dev)
  have python3 || packages+=(python3)
  has_pip || packages+=(python3-pip)
  has_openblas || packages+=(libopenblas0-pthread)
  clang_done || packages+=(clang)
}

install_packages() {
  local as_root=()
  if [ "$(id -u)" != 0 ]; then
    if ! have sudo || ! sudo -n true 2>/dev/null; then return 1; fi
    as_root=(sudo -n)
  fi
  as_root+=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120)
  say "installing Debian packages: ${packages[*]}"
  mkdir -p "$build"
  "${as_root[@]}" update >"$build/apt-update.log" 2>&1 ||
    say "apt-get update failed (see $build/apt-update.log); using the package lists as they are"
  logged "$build/apt-install.log" "${as_root[@]}" install -y --no-install-recommends "${packages[@]}"
}

check_compiler() {
  local macros clang gcc
  macros=$(preprocess </dev/null || true)
  clang=$(sed -n 's/^#define __clang_major__ //p' <<<"$macros")
  gcc=$(sed -n 's/^#define __GNUC__ //p' <<<"$macros")
  if [ -n "$clang" ]; then check_version clang++ 15 "$clang"; else check_version g++ 12 "$gcc"; fi
}

check_machine() {
  if [ $lib = so ]; then
    if have apt-get; then
      check_packages
      if [ ${#packages[@]} -gt 0 ] && ! install_packages; then
        missing+=("Debian packages: sudo apt-get install ${packages[*]}")
      fi
    else
      has_openblas || say "OpenBLAS (libopenblas.so.0) was not found; MLX is many times slower without it"
    fi
    check_version glibc 2.35 "$(getconf GNU_LIBC_VERSION 2>/dev/null | number)"
  elif ! xcrun --find clang++ >/dev/null 2>&1; then
    missing+=("Xcode's tools: xcode-select --install")
  fi

  # What Debian's packages hold is named above where it is missing.
  named() { [[ " ${packages[*]-} " == *" $1 "* ]] && ! have "$2"; }
  named cmake cmake || check_version cmake 3.16 "$(cmake --version 2>/dev/null | number)"
  named g++ "${compiler%% *}" || check_compiler
  named python3 python3 || check_version Python 3.11 "$(python3 --version 2>/dev/null | number)"
  named python3-pip pip || has_pip || missing+=("pip for python3")
  check_version Go 1.26 "$({ go env GOVERSION || GOTOOLCHAIN=local go env GOVERSION; } 2>/dev/null | number)"
  check_version cargo 1.78 "$(cargo --version 2>/dev/null | number)"

  if [ ${#missing[@]} -gt 0 ]; then
    say "please install these and run it again:"
    printf '  %s\n' "${missing[@]}" >&2
    exit 1
  fi
}

# The steps. Each works below .setup/build and moves its results into place.

fetch_wheel() { # distribution folder [platform]: unpacks the pinned wheel
  local dir=$build/wheel target=${3:-$platform}
  rm -rf "$dir" "$2"
  mkdir -p "$dir"
  echo "$1==$MLX_VERSION --hash=sha256:$(wheel_sum "$1" "$target")" >"$dir/requirements.txt"
  say "fetching $1 $MLX_VERSION for $target"
  logged "$dir/log" python3 -m pip --disable-pip-version-check download --no-deps --only-binary=:all: \
    --platform "$target" --require-hashes -r "$dir/requirements.txt" -d "$dir"
  python3 -m zipfile -e "$dir"/*.whl "$2"
}

replace_wheel() { # unpacked target: the unpacked wheel takes the place of an older one
  mkdir -p "$2"
  rm -rf "$2"/mlx "$2"/mlx_*
  mv "$1"/* "$2"
}

install_mlx() {
  fetch_wheel $wheel "$build/mlx"
  undo mlx
  undo mlxc
  replace_wheel "$build/mlx" "$setup/lib"
  stamp mlx "$mlx_key"
}

# build_dir makes a folder that lasts until the step is done, so that a build
# that was interrupted goes on where it was.
build_dir() { # step key
  local dir
  dir=$build/$1-$(cksum <<<"$2" | cut -d' ' -f1)
  mkdir -p "$dir"
  echo "$dir"
}

install_mlxc() {
  local dir
  dir=$(build_dir mlxc "$mlxc_key")
  say "building mlx-c (about a minute on two cores)"
  logged "$dir/vendor.log" cargo vendor --locked --manifest-path $here/mlxc/Cargo.toml "$dir/vendor"
  logged "$dir/configure.log" cmake -S $here/mlxc -B "$dir/cmake" -DCMAKE_BUILD_TYPE=Release \
    -DMLX_C_SOURCE="$dir/vendor/mlx-sys/src/mlx-c" -DCMAKE_PREFIX_PATH="$setup/lib/mlx" \
    -DCMAKE_INSTALL_PREFIX="$dir/install" -DCMAKE_INSTALL_LIBDIR=lib -DCMAKE_INSTALL_INCLUDEDIR=include
  logged "$dir/build.log" cmake --build "$dir/cmake" -j "$(getconf _NPROCESSORS_ONLN)"
  logged "$dir/install.log" cmake --install "$dir/cmake"
  undo mlxc
  mkdir -p "$setup/include"
  rm -rf "$setup/include/mlx"
  mv "$dir/install/include/mlx" "$setup/include/mlx"
  mv -f "$dir/install/lib/libmlxc.$lib" "$setup/lib/libmlxc.$lib"
  check_mlxc
  stamp mlxc "$mlxc_key"
}

check_mlxc() { # it opens, finds libmlx beside it, and that is the pinned one
  local found
  found=$(python3 - "$setup/lib/libmlxc.$lib" <<'EOF'
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
lib.mlx_string_data.restype = ctypes.c_char_p
text = ctypes.c_void_p()
lib.mlx_version(ctypes.byref(text))
print(lib.mlx_string_data(text).decode())
EOF
  ) || die "the new libmlxc.$lib cannot be opened"
  [ "$found" = "$MLX_VERSION" ] || die "libmlxc.$lib finds MLX $found, not $MLX_VERSION"
}

install_tokenizers() {
  local dir
  dir=$(build_dir tokenizers "$tokenizers_key")
  say "building libtokenizers.a (about a minute on two cores)"
  if [ ! -d "$dir/src" ]; then
    local module=github.com/daulet/tokenizers source sum
    go mod download -json "$module@$TOKENIZERS_VERSION" >"$dir/module.json" ||
      die "cannot fetch the Go module $module $TOKENIZERS_VERSION: $(cat "$dir/module.json")"
    source=$(sed -n 's/^[[:space:]]*"Dir": "\(.*\)",*$/\1/p' "$dir/module.json")
    sum=$(sed -n 's/^[[:space:]]*"Sum": "\(.*\)",*$/\1/p' "$dir/module.json")
    [ "$sum" = "$TOKENIZERS_SUM" ] || die "$module $TOKENIZERS_VERSION has checksum $sum, not $TOKENIZERS_SUM"
    rm -rf "$dir/copy"
    cp -R "$source" "$dir/copy" # the module cache is read-only
    chmod -R u+w "$dir/copy"
    mv "$dir/copy" "$dir/src"
  fi
  logged "$dir/build.log" cargo build --release --locked --lib \
    --manifest-path "$dir/src/Cargo.toml" --target-dir "$dir/target"
  undo tokenizers
  mkdir -p "$setup/lib"
  mv -f "$dir/target/release/libtokenizers.a" "$setup/lib/libtokenizers.a"
  stamp tokenizers "$tokenizers_key"
}

# The libmlxc that was built against the CPU wheel serves the CUDA wheel too:
# MLX's headers are the same, and the CUDA wheel's CMake package wants all of
# the CUDA toolkit.
install_cuda13() {
  fetch_wheel mlx-cuda-13 "$build/cuda13"
  undo cuda13
  replace_wheel "$build/cuda13" "$setup/cuda13/lib"
  cp "$setup/lib/libmlxc.so" "$setup/cuda13/lib/libmlxc.so"
  stamp cuda13 "$cuda_key"
}

install_macos() { # a folder for each, named after its platform
  local p
  undo macos
  rm -rf "$setup/macos"
  mkdir -p "$setup/macos"
  for p in $macos_platforms; do
    fetch_wheel mlx-metal "$build/$p" "$p"
    mv "$build/$p" "$setup/macos/$p"
  done
  stamp macos "$macos_key"
}

install_nvidia() { # libmlx looks for these in ../../nvidia, as in a Python environment
  local dir wheel
  dir=$(build_dir nvidia "$nvidia_key")
  say "fetching NVIDIA's libraries (some gigabytes)"
  logged "$dir/log" python3 -m pip --disable-pip-version-check download --no-deps --only-binary=:all: \
    --require-hashes -r $here/cuda13.txt -d "$dir"
  rm -rf "$dir/unpacked"
  for wheel in "$dir"/*.whl; do
    python3 -m zipfile -e "$wheel" "$dir/unpacked"
  done
  undo nvidia
  mkdir -p "$setup/cuda13/lib"
  rm -rf "$setup/cuda13/lib/nvidia"
  mv "$dir/unpacked/nvidia" "$setup/cuda13/lib/nvidia"
  stamp nvidia "$nvidia_key"
}

if [ -n "$list" ]; then
  echo "$wheel $MLX_VERSION $platform"
  if [ -n "$cuda_key" ]; then echo "mlx-cuda-13 $MLX_VERSION $platform"; fi
  if [ -n "$macos_key" ]; then for p in $macos_platforms; do echo "mlx-metal $MLX_VERSION $p"; done; fi
  exit
fi

# One set-up at a time in a tree.
lock=$setup/lock
take_lock() {
  local holder waited=
  mkdir -p "$setup"
  until ln -s $$ "$lock" 2>/dev/null; do
    holder=$(readlink "$lock" || true)
    if [ -n "$holder" ] && ! kill -0 "$holder" 2>/dev/null; then
      rm -f "$lock" # it was ended before it could
      continue
    fi
    [ -n "$waited" ] || say "waiting for another set-up (process $holder)"
    waited=yes
    sleep 1
  done
  trap 'rm -f "$lock"' EXIT
}

if mlx_done && mlxc_done && tokenizers_done && cuda13_done && nvidia_done && macos_done && clang_done; then exit; fi
take_lock
check_machine
mlx_done || install_mlx
mlxc_done || install_mlxc
tokenizers_done || install_tokenizers
cuda13_done || install_cuda13
nvidia_done || install_nvidia
macos_done || install_macos
rm -rf "$build"
say "done: .setup is ready${cuda_key:+; for CUDA set GOMFLUX_MLX=$setup/cuda13/lib}"
