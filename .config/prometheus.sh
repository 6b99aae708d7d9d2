#!/bin/sh
# Prints the directory of prometheus and promtool, with which tests/system/test_prometheus.py tries examples/monitoring. Where they are not installed, they
# are unpacked below .venv: Debian's package would start a server on this machine, so it is not installed.
# Fails with a reason if there is no Prometheus.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'prometheus: %s\n' "$*" >&2; }

unpacked="$PWD/.venv/prometheus"

unpack() {
  command -v apt-get > /dev/null || return 1
  rm -rf "$unpacked"
  mkdir -p "$unpacked"
  say "unpacking prometheus below .venv; it is not installed"
  (cd "$unpacked" && apt-get download -qq prometheus > /dev/null 2>&1) || return 1
  for package in "$unpacked"/*.deb; do dpkg-deb -x "$package" "$unpacked/root" || return 1; done
  rm -f "$unpacked"/*.deb
}

if command -v prometheus > /dev/null && command -v promtool > /dev/null; then
  dirname "$(command -v promtool)"
  exit 0
fi
if [ ! -x "$unpacked/root/usr/bin/promtool" ] && ! unpack; then
  rm -rf "$unpacked"
  say "this machine lacks prometheus, and apt cannot bring it (Debian: prometheus)"
  exit 1
fi
printf '%s\n' "$unpacked/root/usr/bin"
