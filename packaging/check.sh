#!/usr/bin/env bash
# Installs and starts the Debian package and the container image of a directory: packaging/check.sh DIRECTORY
# Needs root, because both contain files of other users. Leaves the machine as it is: everything happens in a temporary directory.
set -euo pipefail
dist=$(realpath "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
chmod 755 "$work"
service=''
stop() { # SIGTERM, which must be a success
  kill "$service"
  wait "$service"
  service=''
}
finish() {
  [ -z "$service" ] || kill -KILL "$service" 2>/dev/null || :
  rm -rf "$work"
}
trap finish EXIT
fail() { echo "error: $*" >&2; exit 1; }

start() { # COMMAND...: starts a service on free ports, and waits until it listens; sets devices and page
  "$@" >"$work/out" &
  service=$!
  until page=$(sed -n 's|^status:  ||p' "$work/out") && [ -n "$page" ]; do
    kill -0 "$service" 2>/dev/null || fail "the service ended before it listened: $*"
    sleep 0.1
  done
  devices=$(sed -n 's|^devices: ||p' "$work/out")
  [ "$(curl -fsS "$page/healthz")" = ok ] || fail "$page/healthz is not ok"
}

echo "Debian package"
package=$(echo "$dist"/fedbandit_*.deb)
root=$work/root state=$work/root/var/lib/fedbandit
mkdir -p "$root"/var/lib/dpkg/{info,updates}
# The packages that it depends on are those of this machine.
names=$(dpkg-deb -f "$package" Depends | tr ',|' '\n\n' | awk '{ print $1 }' | sort -u)
# Alternatives that are not installed are errors of dpkg-query.
xargs dpkg-query -s <<<"$names" >"$root/var/lib/dpkg/status" 2>/dev/null || :
scratch_dpkg() { dpkg --root="$root" --log=/dev/null --force-script-chrootless "$@" 2> >(grep -v 'files list file' >&2); }
scratch_dpkg --install "$package"
scratch_dpkg --verify fedbandit
IFS=: read -r _ _ uid gid _ < <(grep '^fedbandit:' "$root/etc/passwd")
[ "$uid" != 0 ] || fail "the user fedbandit is root"
[ "$(stat -c '%a %u %g' "$state")" = "700 $uid $gid" ] || fail "$state: $(stat -c '%a %u %g' "$state")"
config=$root/etc/fedbandit/controller.toml
[ "$(stat -c '%a %u %g' "$config")" = "640 0 $gid" ] || fail "$config: $(stat -c '%a %u %g' "$config")"
bash -n "$root/usr/share/bash-completion/completions/fedbandit"
gzip -dc "$root/usr/share/man/man1/fedbandit-serve.1.gz" | grep -q '^\.TH' || fail "no man page"

unit=$root/usr/lib/systemd/system/fedbandit.service
systemd-analyze security --offline=true --threshold=15 "$unit" | tail -n 1
# The unit's paths are in the scratch root here.
sed "s|=/usr/bin/fedbandit|=$root/usr/bin/fedbandit|" "$unit" >"$work/fedbandit.service"
complaints=$(systemd-analyze verify --man=no "$work/fedbandit.service" 2>&1) || fail "$complaints"
[ -z "$complaints" ] || fail "$complaints"

# Arrays and not functions: the process in the background must be the service itself.
as_user=(setpriv "--reuid=$uid" "--regid=$gid" --clear-groups --no-new-privs)
"${as_user[@]}" "$root/usr/bin/fedbandit" enroll --dir "$state/run-1" --dim 4 --count 2
read -r -a command < <(sed -n 's/^ExecStart=//p' "$unit")
start "${as_user[@]}" "${command[@]/#\//$root/}" --dir "$state/run-1" --listen 127.0.0.1:0 --http 127.0.0.1:0
"${as_user[@]}" "$root/usr/bin/fedbandit" device --connect "$devices" --identities "$state/run-1/devices" --count 2 --episodes 2 >"$work/report"
[ "$(jq .acknowledged "$work/report")" = 4 ] || fail "$(cat "$work/report")"
stop
scratch_dpkg --purge fedbandit
[ ! -e "$root/usr/bin/fedbandit" ] && [ ! -e "$config" ] || fail "files are left: $(find "$root/usr" "$root/etc" -type f)"
[ -s "$state/run-1/master.key" ] || fail "the master key was removed"

echo "container image"
version=$(dpkg-deb -f "$package" Version)
umoci unpack --image "$dist/fedbandit.oci:$version" "$work/bundle"
rootfs=$work/bundle/rootfs
mapfile -t command < <(jq -r '.process.args[]' "$work/bundle/config.json")
mapfile -t environment < <(jq -r '.process.env[]' "$work/bundle/config.json")
user=$(jq -r '.process.user | "\(.uid):\(.gid)"' "$work/bundle/config.json")
[ "$user" = 65532:65532 ] || fail "the image runs as $user"
[ "$(find "$rootfs" -type f -perm /111 | wc -l)" = 1 ] || fail "the image has other programs: $(find "$rootfs" -type f -perm /111)"
inside=(env -i "${environment[@]}" FEDBANDIT_LISTEN=127.0.0.1:0 FEDBANDIT_HTTP=127.0.0.1:0
  /usr/sbin/chroot "--userspec=$user" "$rootfs")
"${inside[@]}" "${command[0]}" enroll --dir /var/lib/fedbandit --dim 4 --count 2
start "${inside[@]}" "${command[@]}"
stop
echo "package and image can be installed, started and removed"
