#!/bin/sh
# Prints the path of OpenSSH's sshd, which tests/system/test_mesh_sshd.py starts on loopback with a configuration of its own. Where it is not installed,
# root gets it unpacked below .venv: Debian's package would start a server on this machine, so it is not installed. sshd asks for its account, which is made.
# Fails with a reason if no sshd is there.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'sshd: %s\n' "$*" >&2; }

installed() {
  PATH="/usr/sbin:/usr/local/sbin:/sbin:$PATH" command -v sshd
}

# Written beside the unpacked program: its libraries lie there too.
unpacked="$PWD/.venv/openssh/sshd"

unpack() {
  rm -rf .venv/openssh
  mkdir -p .venv/openssh/packages/partial
  say "unpacking openssh-server below .venv; it is not installed"
  apt-get update -qq >&2 || :
  apt-get install -y -qq --download-only --no-install-recommends -o Dir::Cache::archives="$PWD/.venv/openssh/packages" openssh-server > /dev/null || return 1
  for package in .venv/openssh/packages/*.deb; do dpkg-deb -x "$package" .venv/openssh/root || return 1; done
  server="$PWD/.venv/openssh/root/usr/sbin/sshd"
  libraries=$(find "$PWD/.venv/openssh/root" -name 'lib*.so.*' -exec dirname {} + | sort -u | paste -sd :)
  if [ -e .venv/openssh/root/usr/lib/openssh/sshd-session ] || LD_LIBRARY_PATH="$libraries" ldd "$server" | grep -q 'not found'; then
    say "the sshd of this release runs where it is installed, and nowhere else"
    return 1
  fi
  getent passwd sshd > /dev/null || useradd --system --no-create-home --home-dir /run/sshd --shell /usr/sbin/nologin sshd || return 1
  # For every connection sshd starts itself again, by the path that it was called by.
  printf '#!/bin/sh\nexport LD_LIBRARY_PATH="%s"\nexec "%s" "$@"\n' "$libraries" "$server" > "$unpacked" && chmod 755 "$unpacked"
}

if installed; then
  exit 0
fi
if [ ! -x "$unpacked" ] && [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
  unpack || rm -f "$unpacked"
fi
if [ ! -x "$unpacked" ]; then
  say "this machine lacks sshd (Debian, Ubuntu: openssh-server)"
  exit 1
fi
printf '%s\n' "$unpacked"
