#!/bin/sh
# Makes .venv with what the controller needs; `make setup` runs it. Does nothing where that was done from the same files in the same place.
# What this machine lacks is named in one line, and installed first where root can do that from Debian's or Ubuntu's packages.
set -eu
cd "$(dirname "$0")/.."

# A virtual environment cannot be moved, so its place is the stamp's first line.
stamp=.venv/trainyard-setup
state=$(pwd; cat requirements.txt requirements.yml)
if [ -x .venv/bin/ansible-playbook ] && [ "$(cat "$stamp" 2> /dev/null || :)" = "$state" ]; then
  exit 0
fi

say() { printf 'setup: %s\n' "$*"; }

# ansible-core 2.19 runs on Python 3.11 and newer; ensurepip is a package of its own on Debian.
find_python() {
  for candidate in python3 /usr/bin/python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
      python=$candidate
      return 0
    fi
  done
  return 1
}

lacking() {
  missing=''
  find_python || missing='python3 python3-venv'
  for pair in ssh-keygen:openssh-client rsync:rsync git:git; do
    command -v "${pair%%:*}" > /dev/null || missing="$missing ${pair##*:}"
  done
  missing=${missing# }
  [ -n "$missing" ]
}

if lacking; then
  if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
    say "installing $missing with apt"
    apt-get update -qq
    # shellcheck disable=SC2086 # one word a package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing > /dev/null
  fi
  if lacking; then
    say "this machine lacks $missing (Python 3.11 or newer). Remedy: sudo apt-get install $missing; then make setup again" >&2
    exit 1
  fi
fi

say "making .venv with $("$python" --version) from requirements.txt; this takes a minute or two"
if [ "$(head -n 1 "$stamp" 2> /dev/null || pwd)" != "$(pwd)" ] || ! .venv/bin/python -c 'import pip' 2> /dev/null; then
  "$python" -m venv --clear .venv
fi
rm -f "$stamp"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt
.venv/bin/ansible-galaxy collection install -r requirements.yml > .venv/galaxy.log || { cat .venv/galaxy.log >&2; exit 1; }
printf '%s\n' "$state" > "$stamp"
say "done; activate it with: . .venv/bin/activate"
