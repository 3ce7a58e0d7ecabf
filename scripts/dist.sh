#!/usr/bin/env bash
# Packs gomflux with the libraries that it opens into dist/gomflux-VERSION-OS-ARCH.tar.gz, for machines without a
# development environment. Runs after scripts/setup.sh, on macOS with --with-macos, as make dist does.
# usage: scripts/dist.sh [--mac-libraries]
# With --mac-libraries it packs only MLX's libraries of an archive for macOS, on any system.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/dist/functions.sh

# copy_libraries FROM TO PATTERNS: copies files and those of folders that match patterns, but not those for who compiles against MLX. The
# libraries find each other by relative paths, so they need no changes, and on macOS their signatures stay valid.
copy_libraries() {
  local file
  [ -d "$1" ] || die "no $1 (run make setup, for an archive for macOS scripts/setup.sh --with-macos)"
  (cd "$1" && find -L $3 -maxdepth 1 -type f ! -name '*.a') | while read -r file; do
    mkdir -p "$2/$(dirname "$file")"
    cp "$1/$file" "$2/$file"
  done
}

# copy_mac_libraries: MLX for macOS 15 and, in a folder whose name says from when on the program uses it, for 26.2.
copy_mac_libraries() {
  copy_libraries .setup/macos/macosx_15_0_arm64 "$stage/lib" mlx/lib
  copy_libraries .setup/macos/macosx_26_0_arm64 "$stage/lib/macos26.2" mlx/lib
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
stage=$work/stage licences=$work/stage/licences share=/usr/share
mkdir -p "$stage/lib" dist
when=$(TZ=UTC0 git log -1 --date=format-local:%Y%m%d%H%M.%S --format=%cd)
os=$(go env GOOS)

if [ "$*" = --mac-libraries ]; then
  copy_mac_libraries
  go run ./scripts/dist "$stage" >/dev/null
  pack "$stage" dist/gomflux-darwin-arm64-libraries.tar.gz "$when"
  exit
fi
[ $# = 0 ] || die "usage: scripts/dist.sh [--mac-libraries]"

# not bin/gomflux: this always contains the version
go build -trimpath -buildvcs=true -ldflags='-s -w' -o "$stage/gomflux" ./cmd/gomflux
version=$("$stage/gomflux" version | cut -d ' ' -f 2)
[[ $version = v* ]] || die "the program says it is $version: expected a version such as v0.1.0 (it comes from git: is" \
  "this a clone with git installed?)"

go_parts
crate_parts
mlx_parts
if [ "$os" = darwin ]; then
  copy_mac_libraries
  # each has its own copy, which finds libmlx relative to itself
  cp .setup/lib/libmlxc.dylib "$stage/lib"
  cp .setup/lib/libmlxc.dylib "$stage/lib/macos26.2"
  other=linux needs="s/MACOS/$(go run ./scripts/dist "$stage")/"
else
  copy_libraries .setup/lib "$stage/lib" "libmlxc.so mlx/lib mlx_*.libs"
  # what makes products on CPUs fast, as Debian has it: gomflux opens an OpenBLAS that lies beside libmlxc
  for library in libopenblas.so.0:libopenblas0-pthread libgfortran.so.5:libgfortran5 libquadmath.so.0:libquadmath0; do
    file=${library%:*} package=${library#*:}
    path=$(/sbin/ldconfig -p | awk -v file="$file" '$1 == file && !n++ { print $NF }')
    [ -n "$path" ] || die "no $file on this machine (apt-get install $package)"
    cp "$path" "$stage/lib/$file"
    debian_part "$package" "$(dpkg-query -W -f '${Version}' "$package")"
  done
  glibc=$(newest GLIBC "$stage")
  glibcxx=$(newest GLIBCXX "$stage")
  other=darwin needs="s/MINGLIBCXX/$glibcxx/; s/MINGLIBC/$glibc/"
fi
write_index

cp LICENSE "$stage"
mkdir "$stage/completions"
for shell in bash:gomflux zsh:_gomflux fish:gomflux.fish; do # the names that they look for
  "$stage/gomflux" completion "${shell%:*}" >"$stage/completions/${shell#*:}"
done
sed "/^<$other>/,/^<\/$other>/d; /^<.*>\$/d; s/VERSION/$version/; $needs" scripts/dist/readme.txt >"$stage/README.txt"
pack "$stage" "dist/gomflux-$version-$os-$(go env GOARCH).tar.gz" "$when"
