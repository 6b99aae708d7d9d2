#!/bin/sh
# Makes .venv with what the controller needs; `make setup` runs it. Does nothing where that was done
# from the same files in the same place. What this machine lacks is named in one line, and installed
# first where root can do that from Debian's or Ubuntu's packages.
#   .config/setup.sh        what a user needs: requirements.txt
#   .config/setup.sh dev    tests, linters and maintenance besides: .config/requirements-dev.txt
set -eu
cd "$(dirname "$0")/.."

lists=requirements.txt
stamp=.venv/trainyard-setup
case "${1:-}" in
  '') ;;
  dev)
    lists="$lists .config/requirements-dev.txt"
    stamp=.venv/trainyard-setup-dev
    ;;
  *)
    echo "usage: $0 [dev]" >&2
    exit 2
    ;;
esac

# A virtual environment cannot be moved, so its place is the stamp's first line. Worktrees may share
# one by a symbolic link.
place=$(dirname "$(readlink -f .venv)")
# shellcheck disable=SC2086 # one word per list
state=$(printf '%s\n' "$place"; cat $lists requirements.yml)
if [ -x .venv/bin/ansible-playbook ] && [ "$(cat "$stamp" 2> /dev/null || :)" = "$state" ]; then
  exit 0
fi

say() { printf 'setup: %s\n' "$*"; }

made_in=$(cat .venv/trainyard-setup .venv/trainyard-setup-dev 2> /dev/null | head -n 1)
usable=''
if [ "${made_in:-$place}" = "$place" ] && .venv/bin/python -c 'import pip' 2> /dev/null; then
  usable=yes
elif [ -L .venv ]; then
  # To make it anew would empty what belongs to another checkout.
  say ".venv is a link to $(readlink .venv), which is not usable. Remedy: make setup in $place, or rm .venv here" >&2
  exit 1
fi

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
  tools=''
  needs_python=no
  if ! find_python; then
    needs_python=yes
    missing='python3 python3-venv'
  fi
  for pair in ssh-keygen:openssh-client rsync:rsync git:git; do
    command -v "${pair%%:*}" > /dev/null || tools="$tools ${pair##*:}"
  done
  missing="$missing$tools"
  missing=${missing# }
  [ -n "$missing" ]
}

if lacking; then
  if [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
    say "installing $missing with apt"
    apt-get update -qq
    # shellcheck disable=SC2086 # one word per package
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing > /dev/null
  fi
  if lacking; then
    # shellcheck disable=SC2086 # one word per package
    remedy=$(.config/python_remedy.sh /etc/os-release "$(uname -s)" "$needs_python" $tools)
    say "this machine lacks $missing (Python 3.11 or newer). Remedy: $remedy; then make setup again" >&2
    exit 1
  fi
fi

say "making .venv with $("$python" --version) from $lists; this takes a minute or two"
if [ -z "$usable" ]; then
  "$python" -m venv --clear .venv
fi
rm -f "$stamp"

# Bytecode is made at the end, for what stays.
install() {
  # shellcheck disable=SC2046,SC2086 # one word per list
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes \
    "$@" $(printf ' -r %s' $lists)
}
install
# An earlier setup may have removed a collection that requirements.yml asks for now.
if .venv/bin/python .config/slim.py --lacks; then
  install --force-reinstall
fi
.venv/bin/python .config/slim.py
.venv/bin/python -m compileall -q -j 0 .venv/lib > /dev/null 2>&1 || :
.venv/bin/ansible-galaxy collection install -r requirements.yml > .venv/galaxy.log || { cat .venv/galaxy.log >&2; exit 1; }

# The command `trainyard`, from this checkout: what pip's editable install does, without a build.
printf '%s\n' "$place/src" > "$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/trainyard.pth"
printf '#!%s/.venv/bin/python\nfrom trainyard.cli import main\n\nmain()\n' "$place" > .venv/bin/trainyard
chmod +x .venv/bin/trainyard

printf '%s\n' "$state" > "$stamp"
if [ "$lists" != requirements.txt ]; then
  # The dev set holds the user's.
  (printf '%s\n' "$place"; cat requirements.txt requirements.yml) > .venv/trainyard-setup
fi
say "done; activate it with: . .venv/bin/activate"
