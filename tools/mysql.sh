#!/bin/sh
# Unpack a real MySQL server into the folder $1, for `make test-mysql`. Debian 12 has MariaDB only;
# Debian's unstable branch has MySQL. Its packages are fetched by apt with lists of our own and
# unpacked beside the system, not installed: no root needed, nothing else changes.
set -eu
target=$1
if [ -x "$target/root/usr/sbin/mysqld" ]; then
  echo "mysql: $target is ready"
  exit 0
fi
fail() { printf '%s\n' "mysql: $*" >&2; exit 1; }
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null \
  || fail "apt-get and dpkg-deb are needed to fetch a MySQL server; this is not a Debian"

mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' | head -n 1)
[ -n "$mirror" ] || fail "no Debian mirror among apt's sources (run apt-get update once, as root)"

mkdir -p "$target"
target=$(cd "$target" && pwd)
apt=$target/apt
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/etc/preferences.d"
: > "$apt/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror unstable main" \
  > "$apt/sources.list"
own_apt() {
  apt-get -qq -o Dir::Etc="$apt/etc" -o Dir::Etc::SourceList="$apt/sources.list" \
    -o Dir::State="$apt/state" -o Dir::State::Status="$apt/status" -o Dir::Cache="$apt/cache" \
    -o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none "$@" </dev/null
}
echo "mysql: fetching mysql-server-core (about 100 MB)"
own_apt update || fail "cannot read Debian's unstable branch"
own_apt --download-only --no-install-recommends -y install mysql-server-core >/dev/null \
  || fail "cannot fetch mysql-server-core"
rm -rf "$target/unpacked"
for package in "$apt"/cache/archives/*.deb; do
  dpkg-deb --extract "$package" "$target/unpacked"
done
mv "$target/unpacked" "$target/root"
rm -rf "$apt"
echo "mysql: $target is ready"
