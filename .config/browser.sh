#!/bin/sh
# Finds the browser in which the report is clicked through (tests/system/test_report_browser.py), Debian's Chromium with its driver; root gets it installed.
# Fails with a reason if no browser is there: Ubuntu has it as a snap only, which needs more than a package.
set -eu

found() { command -v chromium > /dev/null && command -v chromedriver > /dev/null; }

if ! found && [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
  printf 'browser: installing chromium with apt\n'
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium chromium-driver fonts-dejavu-core > /dev/null || :
fi
if ! found; then
  printf 'browser: this machine lacks chromium and chromedriver (Debian: chromium, chromium-driver)\n' >&2
  exit 1
fi
printf 'browser: %s\n' "$(chromium --version 2> /dev/null)"
