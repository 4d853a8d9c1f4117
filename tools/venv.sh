#!/bin/sh
# Make the virtual environment given as $1 from the locked requirements, and install the project
# into it in editable form. Needs nothing but a Python of 3.11 or later. Run by `make venv`.
set -eu
venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)

say() { printf '%s\n' "venv: $*"; }
fail() { printf '%s\n' "venv: $*" >&2; exit 1; }

python=${PYTHON:-}
if [ -z "$python" ]; then
  for name in python3.11 python3.12 python3.13 python3; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$name
      break
    fi
  done
fi
[ -n "$python" ] || fail "no Python of 3.11 or later found; install python3 or set PYTHON=/path/to/python"

# Debian ships ensurepip, without which there is no pip in the environment, in a package of its own.
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "$python has no ensurepip: installing $package"
    apt-get update -qq </dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
      "$package" ca-certificates </dev/null >/dev/null
  else
    fail "$python has no ensurepip. As root, run: apt-get install $package   (then repeat this)"
  fi
fi

# An environment that was moved here or half made is not repaired but made anew.
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  rm -rf "$venv"
  say "making $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check -qq "$@" </dev/null; }
say "installing requirements/dev.lock (about half a minute the first time)"
pip install --no-deps --require-hashes -r "$root/requirements/dev.lock"
pip install --no-deps --no-build-isolation --editable "$root"
say "ready"
