#!/usr/bin/env bash
# Takes pictures of gomflux generate --preview --show in terminals that show
# pictures, on the way and at the end: scripts/screenshots.sh FOLDER [FLAGS...]
#
# FLAGS are added to the command. Nothing appears on the screen of who runs it.
# On Debian: apt install xvfb xdotool imagemagick dbus-x11 fonts-dejavu-core
# and those of xterm, kitty, konsole, mlterm that shall be shown.
set -eu

[ $# -ge 1 ] || { echo "usage: scripts/screenshots.sh FOLDER [FLAGS...]" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
cd "$(dirname "$0")/.."
gomflux=$PWD/bin/gomflux
[ -x "$gomflux" ] || { echo "screenshots: no bin/gomflux (make build)" >&2; exit 1; }
for tool in Xvfb xdotool import dbus-run-session; do
  command -v "$tool" >/dev/null || { echo "screenshots: $tool is missing" >&2; exit 1; }
done

work=$(mktemp -d)
started=()
# end stops a process and what it started: dbus-run-session leaves its daemon
# and the terminal behind otherwise.
end() {
  pkill -P "$1" || true
  kill "$1" 2>/dev/null || true
}
cleanup() {
  for pid in "${started[@]}"; do end "$pid"; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

# shoot NAME WINDOW-CLASS PROTOCOL TERMINAL... takes NAME-preview.png and
# NAME-show.png. TERMINAL is a command that ends with its flag for a program.
shoot() {
  local name=$1 class=$2 protocol=$3
  shift 3
  command -v "$1" >/dev/null || { echo "$name: not installed, left out"; return; }
  local home=$work/$name display terminal window frames=() i
  mkdir "$home"
  mkdir -m 700 "$home/run"
  mkfifo "$home/display"
  Xvfb -displayfd 3 -screen 0 900x700x24 3>"$home/display" >/dev/null 2>&1 &
  started+=($!)
  read -r display <"$home/display"

  local show="--preview --show"
  [ "$protocol" = auto ] || show="--preview=$protocol --show=$protocol"
  local command="gomflux generate --model shapes --prompt \"a red circle left of a blue square\" --seed 7 $show${flags:+ $flags}"
  cat >"$home/program" <<EOF
cd "$home"
PS1='$ '
gomflux() { : >started; "$gomflux" "\$@"; : >ended; }
printf '%s\n' $(printf %q "\$ $command")
$command
EOF
  # without the caller's settings, and without what tells of the caller's terminal
  env -i PATH="$PATH" HOME="$home" XDG_RUNTIME_DIR="$home/run" DISPLAY=":$display" LANG=C.UTF-8 SHELL=/bin/bash \
    LIBGL_ALWAYS_SOFTWARE=1 QT_LOGGING_RULES='*=false' \
    dbus-run-session -- "$@" bash --noprofile --rcfile "$home/program" -i >"$home/log" 2>&1 &
  terminal=$!
  started+=("$terminal")

  for ((i = 0; i < 1200; i++)); do
    [ ! -e "$home/ended" ] || break
    if [ -e "$home/started" ]; then
      window=${window:-$(DISPLAY=:$display xdotool search --onlyvisible --class "$class" | tail -n 1)}
      DISPLAY=:$display import -window "$window" "$home/$i.png"
      frames+=("$home/$i.png")
    fi
    sleep 0.1
  done
  if [ ! -e "$home/ended" ] || [ ${#frames[@]} -eq 0 ]; then
    echo "screenshots: $name: the command did not end" >&2
    cat "$home/log" >&2
    exit 1
  fi
  sleep 1
  DISPLAY=:$display import -window "$window" "$folder/$name-show.png"
  mv "${frames[${#frames[@]} / 3]}" "$folder/$name-preview.png"
  end "$terminal"
  echo "$folder/$name-preview.png $folder/$name-show.png (${#frames[@]} pictures taken)"
}

flags=${*@Q}
shoot xterm XTerm auto xterm -ti vt340 -fa 'DejaVu Sans Mono' -fs 11 -geometry 80x26 -bg '#1c1c1c' -fg '#dddddd' -e
shoot kitty kitty auto kitty --config NONE -o font_size=11 -o remember_window_size=no -o initial_window_width=80c -o initial_window_height=26c
shoot konsole konsole auto konsole --hide-menubar --hide-tabbar -e
shoot mlterm mlterm auto mlterm -g 80x26 -b '#1c1c1c' -f '#dddddd' -e
shoot mlterm-iterm2 mlterm iterm2 mlterm -g 80x26 -b '#1c1c1c' -f '#dddddd' -e
