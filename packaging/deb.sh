#!/usr/bin/env bash
# Builds a Debian package of a built program: packaging/deb.sh PROGRAM DIRECTORY
# The package depends on the C library that the program was linked with, or on none if it is static.
set -euo pipefail
shopt -s nullglob
program=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."
. packaging/common.sh
umask 022
maintainer="The fedbandit authors <maintainers@fedbandit.invalid>"
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
put() { install -D -m 644 "packaging/$1" "$root/$2"; }

install -D -m 755 "$program" "$root/usr/bin/fedbandit"
strip --strip-unneeded "$root/usr/bin/fedbandit"
put debian/controller.toml etc/fedbandit/controller.toml
put systemd/fedbandit.service usr/lib/systemd/system/fedbandit.service
put debian/sysusers.conf usr/lib/sysusers.d/fedbandit.conf
put debian/tmpfiles.conf usr/lib/tmpfiles.d/fedbandit.conf
put prometheus/alerts.yml usr/share/fedbandit/alerts.yml
put grafana/dashboard.json usr/share/fedbandit/dashboard.json
put debian/copyright usr/share/doc/fedbandit/copyright
install -m 644 CHANGELOG.md "$root/usr/share/doc/fedbandit/NEWS"
cat >"$root/usr/share/doc/fedbandit/changelog" <<END
fedbandit ($(version)) unstable; urgency=medium

  * See NEWS.gz.

 -- $maintainer  $(date -u -R -d "@$(epoch)")
END
licenses >"$root/usr/share/doc/fedbandit/third-party-licenses"
"$program" man --out "$root/usr/share/man/man1" >/dev/null
gzip -9n "$root"/usr/share/man/man1/* "$root"/usr/share/doc/fedbandit/{NEWS,changelog,third-party-licenses}
for shell in bash:bash-completion/completions/fedbandit zsh:zsh/vendor-completions/_fedbandit \
  fish:fish/vendor_completions.d/fedbandit.fish; do
  mkdir -p "$(dirname "$root/usr/share/${shell#*:}")"
  "$program" completions "${shell%%:*}" >"$root/usr/share/${shell#*:}"
done

# dpkg-shlibdeps reads the names of packages from debian/control.
mkdir "$work/debian" "$root/DEBIAN"
printf 'Source: fedbandit\n\nPackage: fedbandit\nArchitecture: any\n' >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O root/usr/bin/fedbandit 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
cat >"$root/DEBIAN/control" <<END
Package: fedbandit
Version: $(version)
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -k -s --apparent-size "$root" | cut -f 1)
Depends: ${libraries:+$libraries, }systemd | systemd-standalone-sysusers, systemd | systemd-standalone-tmpfiles
Section: science
Priority: optional
Description: Byzantine-robust federated linear bandits
 A fleet of microcontrollers learns one linear bandit together, even if fewer
 than half of the devices lie. This package has the controller as a service,
 and the simulation of fleets under attack.
END
echo /etc/fedbandit/controller.toml >"$root/DEBIAN/conffiles"
install -m 755 packaging/debian/{postinst,prerm,postrm} "$root/DEBIAN"
(cd "$root" && find etc usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
SOURCE_DATE_EPOCH=$(epoch) dpkg-deb --root-owner-group --build "$root" "$out/fedbandit_$(version)_$architecture.deb"
