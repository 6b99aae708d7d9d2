#!/bin/sh
# Prints how to install what the controller lacks on this system, as one line.
#   .config/python_remedy.sh OS_RELEASE SYSTEM PYTHON [PACKAGE ...]
# OS_RELEASE: path of os-release(5). SYSTEM: as uname -s prints it. PYTHON: yes where Python 3.11 or
# newer is missing, else no. PACKAGE: Debian's name of a package that is missing.
set -eu
file=$1
system=$2
python=$3
shift 3
packages=$*
uv='uv python install 3.12 (uv: https://docs.astral.sh/uv/)'

# The file is only read, and not run.
field() { sed -n "s/^$1=//p" "$file" 2> /dev/null | head -n 1 | tr -d "\"'"; }

if [ "$system" = Darwin ]; then
  echo 'use a Linux virtual machine, see docs/runbooks/controllers.md'
  exit 0
fi
id=$(field ID)
version=$(field VERSION_ID)
case " $id $(field ID_LIKE) " in
  *' debian '* | *' ubuntu '*) family=apt-get ;;
  # Rocky, Alma and Oracle name RHEL or Fedora in ID_LIKE.
  *' rhel '* | *' fedora '* | *' centos '*) family=dnf ;;
  *) family='' ;;
esac

before=''
after=''
if [ "$python" = yes ]; then
  case "$family $id-$version" in
    'apt-get ubuntu-1'* | 'apt-get ubuntu-20.'* | 'apt-get ubuntu-22.'*)
      before='sudo add-apt-repository ppa:deadsnakes/ppa && '
      after=", or without root $uv"
      packages="python3.11 python3.11-venv $packages"
      ;;
    'apt-get debian-10' | 'apt-get debian-11') after=" $uv" ;;
    'apt-get '*) packages="python3 python3-venv $packages" ;;
    dnf*-8* | dnf*-9*) packages="python3.11 $packages" ;;
    'dnf '*) packages="python3 $packages" ;;
    *) after=" $uv" ;;
  esac
fi
if [ "$family" = dnf ]; then
  packages=$(printf '%s' "$packages" | sed 's/openssh-client/openssh-clients/')
fi
packages=${packages% }
install="sudo $family install $packages"
if [ -z "$family" ]; then
  install="install $packages with this system's package manager"
fi
if [ -z "$packages" ]; then
  install=''
elif [ "${after# }" != "$after" ]; then
  install="$install, and"
fi
line="$before$install$after"
echo "${line# }"
