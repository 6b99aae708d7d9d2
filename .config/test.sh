#!/bin/sh
# Everything that CI runs, in the order of its price; `make test` calls it. The first thing that fails ends it.
#   .config/test.sh lint | unit | molecule      one part alone
#   .config/test.sh hostile | platforms | long      the scenarios that are not in `make test`, for their length
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/.venv/bin:$PATH"
export PATH ANSIBLE_FORCE_COLOR=0 NO_COLOR=1 PY_COLORS=0
SUITES="paddledetection paddleocr paddleseg mindocr"
# Scenarios on molecule's two nodes that take long. CI does all others but hostile and platforms, which have nodes of their own.
LONG="benchmark endings faults fewer logs spares"

# Nothing to do, nothing done.
.config/setup.sh dev

say() { printf '\n== %s (%s)\n' "$*" "$(date +%T)"; }

lint() {
  say "ruff"
  ruff check .
  ruff format --check .
  say "mypy"
  MYPYPATH=collections:src mypy
  say "ansible-config validate"
  ansible-config validate -t all
  say "ansible-lint, profile production"
  ansible-lint --offline
}

unit() {
  say "browser"
  if .config/browser.sh; then export TRAINYARD_BROWSER=yes; else say "the report is not clicked through here"; fi
  say "sshd"
  if TRAINYARD_SSHD=$(.config/sshd.sh); then export TRAINYARD_SSHD; else say "the certificates are not tried against sshd here"; fi
  say "prometheus"
  if TRAINYARD_PROMETHEUS=$(.config/prometheus.sh); then export TRAINYARD_PROMETHEUS; else say "the alerts are not tried against Prometheus here"; fi
  say "pytest"
  # Many tests wait for real processes, timers and sockets. What fails is printed in full and run once more, alone: a defect fails again.
  # Three at a time on two cores, a file's tests one after the other: much of it waits for programs.
  pytest -q -rs -n 3 --dist loadfile --durations=15 tests || {
    say "the failed tests once more: a test that passes now depends on the load of this machine and needs a fix"
    pytest -q -rs --last-failed --last-failed-no-failures none tests
  }
}

# One set of nodes for all scenarios: default creates it and is the last to let go of it.
scenarios() {
  say "molecule: every scenario but hostile, platforms, $LONG"
  excluded="--exclude hostile --exclude platforms"
  for scenario in $LONG; do excluded="$excluded --exclude $scenario"; done
  # What an earlier run noted as created and prepared is no longer true; the notes lie in the home directory, by the checkout's last name only.
  molecule reset -s default
  # The first one, default, provisions the nodes for PaddleDetection, if nobody has. No other does it again (molecule/shared/prepare.yml).
  TRAINYARD_PROVISIONED="${TRAINYARD_PROVISIONED:-paddledetection}" molecule test --all $excluded
}

alone() {
  say "molecule: $1"
  molecule reset -s "$1"
  molecule test -s "$1"
}

nodes() {
  ansible-playbook -i molecule/inventory playbooks/local.yml
  for suite in $SUITES; do ansible-playbook -i molecule/inventory playbooks/provision.yml -e "suite=$suite"; done
}

everything() {
  # Much of this waits for the network. So it is done while the linters and the unit tests run; what fails here, molecule does again and says.
  log="$(mktemp)"
  ( nodes ) > "$log" 2>&1 &
  lint
  unit
  if wait "$!"; then export TRAINYARD_PROVISIONED="$SUITES"; else say "the nodes are made once more: $(tail -n 5 "$log")"; fi
  rm -f "$log"
  scenarios
  say "all passed"
}

case "${1:-all}" in
  lint) lint ;;
  unit) unit ;;
  molecule) scenarios ;;
  hostile|platforms) alone "$1" ;;
  long) for scenario in $LONG; do alone "$scenario"; done ;;
  all) everything ;;
  *) echo "usage: $0 [lint|unit|molecule|hostile|platforms|long]" >&2; exit 2 ;;
esac
