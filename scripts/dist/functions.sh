# What scripts/dist.sh does piece by piece. It sets $work, an empty folder; $licences, where licences go; and $share,
# which is /usr/share.
# shellcheck shell=bash disable=SC2154
export LC_ALL=C # for sort

die() { echo "dist: $*" >&2; exit 1; }

# pack FOLDER ARCHIVE TIME: packs a folder under the archive's name, and writes the checksum. The same files give the
# same bytes: names are in order, owners and times (as touch -t has them) fixed.
pack() {
  local name owner=(--owner 0 --group 0) sum=sha256sum odd
  name=$(basename "$2" .tar.gz)
  odd=$(find "$1" ! -type f ! -type d)
  [ -z "$odd" ] || die "not a regular file: $odd"
  tar --version | grep GNU >/dev/null || owner=(--uid 0 --gid 0) # macOS has bsdtar
  command -v $sum >/dev/null || sum="shasum -a 256"
  mkdir "$work/packed"
  cp -R "$1" "$work/packed/$name"
  chmod -R u=rwX,go=rX "$work/packed"
  find "$work/packed" -exec env TZ=UTC0 touch -t "$3" {} +
  (cd "$work/packed" && find "$name" | sort | COPYFILE_DISABLE=1 tar -c -f - --format ustar "${owner[@]}" --numeric-owner \
    --no-recursion -T -) | gzip -9n >"$work/archive"
  rm -rf "$work/packed"
  mv "$work/archive" "$2"
  (cd "$(dirname "$2")" && $sum "$name.tar.gz" >"$name.tar.gz.sha256")
  echo "$2"
}

# newest KIND FOLDER: the newest version of a kind of symbols, such as GLIBC for GLIBC_2.35, that the program or a
# library needs.
newest() {
  find "$2" -type f \( -name gomflux -o -name '*.so*' \) ! -path '*/completions/*' -exec readelf -VW {} + |
    sed -n "s/.*Name: $1_\([0-9.]*\) .*/\1/p" | sort -V | tail -n 1
}

# The licences of a part of the archive that is not gomflux's are in a folder with its name and version.
licence_folder() { printf %s "$1" | tr '/ ' _-; }

# licence_files FOLDER: the licence files in it and its direct subfolders, which may contain third-party sources.
licence_files() {
  (cd "$1" && find -L . -mindepth 1 -maxdepth 2 -type f) |
    { grep -Ei '/((un)?licen[cs]e|copying|copyright|notice)([-_.][a-z0-9_.-]*)?$' || true; } |
    { grep -vE '\.(go|rs|py|js|c|h)$' || true; }
}

# part "NAME VERSION" LICENCE FOLDER: copies a part's licence files, which it reads from its input: paths in the folder,
# or whole paths. LICENCE is the declared SPDX expression, if there is one.
part() {
  local file to
  to=$licences/$(licence_folder "$1")
  mkdir -p "$to"
  echo "$1|$2" >>"$work/parts"
  while read -r file; do
    case $file in
      '') ;;
      /*) cp "$file" "$to" ;;
      *)
        mkdir -p "$to/$(dirname "$file")"
        cp "$3/$file" "$to/$file"
        ;;
    esac
  done
}

# mit_part "NAME VERSION" HOLDER: a part under the MIT licence that has no file with it, but a copyright holder.
mit_part() {
  part "$1" MIT . </dev/null
  awk -v holder="$2" '/^Copyright/ { $0 = "Copyright (c) " holder } 1' LICENSE >"$licences/$(licence_folder "$1")/LICENSE"
}

# debian_part NAME VERSION: a Debian package, or Ubuntu's of the same name, with the licence of the installed one.
debian_part() {
  local files=("$share/doc/$1/copyright") licence
  case $1 in
    libgfortran5) licence='GPL-3.0-or-later WITH GCC-exception-3.1' files+=("$share/common-licenses/GPL-3") ;;
    libquadmath0) licence=LGPL-2.1-or-later files+=("$share/common-licenses/LGPL-2.1") ;;
    libblas3 | liblapack3 | libopenblas0-pthread) licence=BSD-3-Clause ;;
    *) die "$1 $2, whose licence is not known here: add it to debian_part" ;;
  esac
  ls "${files[@]}" >/dev/null || die "the licence of $1 is missing (apt-get install $1)"
  printf '%s\n' "${files[@]}" | part "$1 $2" "$licence" /
}

# go_parts: Go itself and the modules that the program uses.
go_parts() {
  local title dir
  licence_files "$(go env GOROOT)" | part "go $(go env GOVERSION | sed s/^go//)" BSD-3-Clause "$(go env GOROOT)"
  go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}|{{.Dir}}{{end}}{{end}}' ./cmd/gomflux | sort -u |
    while IFS='|' read -r title dir; do
      # the standard library and gomflux leave an empty line
      if [ -n "$title" ]; then licence_files "$dir" | part "$title" '' "$dir"; fi
    done
}

# crate_parts: the Rust crates of libtokenizers.a, including those that were only used at compile time, and Rust's
# standard library.
crate_parts() {
  local manifest docs title licence dir files authors
  manifest=$(go list -m -f '{{.Dir}}' github.com/daulet/tokenizers)/Cargo.toml
  cargo vendor -q --locked --versioned-dirs --manifest-path "$manifest" "$work/crates" >/dev/null
  docs=$(rustc --print sysroot)/share/doc/rust # the other file there is the compiler's
  { ls "$docs/COPYRIGHT-library.html" 2>/dev/null || true; } |
    part "rust $(rustc --version | cut -d ' ' -f 2)" 'MIT OR Apache-2.0' "$docs"
  # but for the root, which is the Go module
  cargo tree --locked -e normal --prefix none -f '{p}|{l}' --manifest-path "$manifest" | grep -v ' (/' |
    sed -E 's/ \((proc-macro|\*)\)//g; s, */ *, OR ,g' | sort -u | while IFS='|' read -r title licence; do
    dir=$work/crates/${title/ v/-}
    files=$(licence_files "$dir")
    authors=
    if [ -z "$files" ] && [ "$licence" = MIT ]; then
      authors=$(python3 -c 'import sys, tomllib
print(*tomllib.load(sys.stdin.buffer)["package"].get("authors", []), sep=", ")' <"$dir/Cargo.toml")
    fi
    if [ -n "$authors" ]; then
      mit_part "crate ${title/ v/ }" "$authors"
    else
      echo "$files" | part "crate ${title/ v/ }" "$licence" "$dir"
    fi
  done
}

# mlx_parts: mlx-c, MLX, and the libraries in MLX's wheel.
mlx_parts() {
  local mlxc info name
  cargo vendor -q --locked --versioned-dirs --manifest-path scripts/setup/mlxc/Cargo.toml "$work/mlxc" >/dev/null
  mlxc=$(echo "$work"/mlxc/mlx-sys-*)
  licence_files "$mlxc/src/mlx-c" | part "mlx-c ${mlxc##*/mlx-sys-}" MIT "$mlxc/src/mlx-c"
  info=$(echo .setup/lib/mlx_*.dist-info)
  [ -d "$info" ] || die "expected one mlx_*.dist-info in .setup/lib, found $info (run make setup)"
  name=$(basename "$info" .dist-info)
  licence_files "$info/licenses" | part "$(tr _- '- ' <<<"$name")" MIT "$info/licenses"
  # Compiled into libmlx, and missing from the wheel's licences. {fmt} has an exception for object code.
  mit_part 'nlohmann-json 3.11.3' '2013-2023 Niels Lohmann'
  mit_part gguf-tools 'Salvatore Sanfilippo'
  if [ "$(go env GOOS)" = darwin ]; then part metal-cpp Apache-2.0 . </dev/null; fi
  wheel_parts "$info/sboms/auditwheel.cdx.json"
}

# wheel_parts BOM: the libraries of a Linux distribution in a wheel, as auditwheel lists them. macOS has them all.
wheel_parts() {
  local name version
  if [ ! -e "$1" ]; then return; fi
  python3 -c 'import json, sys
for c in json.load(open(sys.argv[1]))["components"]:
    if c.get("purl", "").startswith("pkg:deb/"):
        print(c["name"], c["version"])' "$1" | while read -r name version; do debian_part "$name" "$version"; done
}

# write_index: lists the parts in INDEX.txt. A part without a licence file is an error, unless it is under Apache-2.0,
# whose text is always the same.
write_index() {
  local title licence dir apache
  apache=$(grep -rl --include='LICENSE*' 'Version 2.0, January 2004' "$licences" | sort | sed -n 1p || true)
  {
    echo "What this archive holds besides gomflux, and the files with its licences."
    if [ "$(go env GOOS)" = linux ]; then
      echo "The sources of the packages lib... are Debian's and Ubuntu's of these versions,"
      echo "at snapshot.debian.org and launchpad.net/ubuntu."
    fi
    echo
    sort -u "$work/parts" | while IFS='|' read -r title licence; do
      dir=$(licence_folder "$title")
      if [ -z "$(find "$licences/$dir" -type f)" ]; then
        [[ -n $apache && $licence = *Apache-2.0* ]] || die "$title ($licence) has no licence file"
        cp "$apache" "$licences/$dir"
      fi
      echo "$title${licence:+, $licence}"
      (cd "$licences" && find "$dir" -type f | sort | sed 's/^/    /')
    done
  } >"$licences/INDEX.txt"
}
