#!/bin/sh
# See that MariaDB and Redis are there for the tests. As root on Debian the missing ones are
# installed, otherwise they are named and this fails. Run by `make services`. libfaketime, which
# gives some nodes of the chaos runs a wrong clock, is installed too and may be missing.
#
# mariadb-*-core and redis-tools hold the server programs without the packages that start
# a system-wide daemon: the tests run private servers on free ports and in temporary folders.
set -eu
PATH=$PATH:/usr/sbin:/sbin

missing=""
command -v mariadbd >/dev/null && command -v mariadb-install-db >/dev/null \
  || missing="$missing mariadb-server-core"
command -v my_print_defaults >/dev/null || missing="$missing mariadb-client-core"
command -v redis-server >/dev/null || command -v redis-check-rdb >/dev/null \
  || missing="$missing redis-tools"

extra=""
ls /usr/lib/*/faketime/libfaketimeMT.so.1 >/dev/null 2>&1 || extra=" libfaketime"

if [ -z "$missing" ] && { [ -z "$extra" ] || [ "$(id -u)" != 0 ]; }; then
  echo "services: MariaDB and Redis programs are here"
elif [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "services: installing$missing$extra"
  # shellcheck disable=SC2086  # a list of package names
  {
    apt-get update -qq &&
      DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing $extra
  } </dev/null >/dev/null || [ -z "$missing" ]
elif [ -z "$missing" ]; then
  echo "services: MariaDB and Redis programs are here"
else
  echo "services: missing:$missing" >&2
  echo "services: as root, run: apt-get install --no-install-recommends$missing" >&2
  echo "services: without them, 'make test-fast' still works" >&2
  exit 1
fi
