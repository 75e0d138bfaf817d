#!/usr/bin/env bash
# Builds a container image of a built static program, in the OCI layout: packaging/image.sh PROGRAM DIRECTORY
# The image has one layer and no shell. It serves the run in /var/lib/fedbandit as user 65532.
set -euo pipefail
shopt -s nullglob
program=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")/fedbandit.oci
cd "$(dirname "$0")/.."
. packaging/common.sh
if ! ldd "$program" 2>&1 | grep -qE 'statically linked|not a dynamic executable'; then
  echo "error: $program is not static; build it with --target x86_64-unknown-linux-musl" >&2
  exit 1
fi
umask 022
created=$(date -u -d "@$(epoch)" +%Y-%m-%dT%H:%M:%SZ)
architecture=$(dpkg --print-architecture)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
rm -rf "$out"
mkdir -p "$out/blobs/sha256" "$root/var/lib/fedbandit" "$root/usr/share/doc/fedbandit"
blob() { # stores stdin, and prints its descriptor with the media type $1
  cat >"$work/blob"
  local digest
  digest=$(sha256sum "$work/blob" | cut -d ' ' -f 1)
  jq -n --arg type "application/vnd.oci.image.$1" --arg digest "sha256:$digest" --argjson size "$(stat -c %s "$work/blob")" \
    '{mediaType: $type, digest: $digest, size: $size}'
  mv "$work/blob" "$out/blobs/sha256/$digest"
}

install -D -m 755 "$program" "$root/usr/bin/fedbandit"
strip --strip-unneeded "$root/usr/bin/fedbandit"
mkdir "$root/etc"
echo 'fedbandit:x:65532:65532::/var/lib/fedbandit:/nonexistent' >"$root/etc/passwd"
echo 'fedbandit:x:65532:' >"$root/etc/group"
cp LICENSE-* "$root/usr/share/doc/fedbandit"
licenses >"$root/usr/share/doc/fedbandit/third-party-licenses"
archive() { tar --sort=name --mtime="@$(epoch)" --numeric-owner --directory "$root" --file "$work/layer" "$@"; }
archive --create --owner=0 --group=0 --exclude=./var/lib/fedbandit .
archive --append --owner=65532 --group=65532 ./var/lib/fedbandit

layer=$(gzip -9n <"$work/layer" | blob layer.v1.tar+gzip)
config=$(
  jq -n --arg created "$created" --arg architecture "$architecture" --arg version "$(version)" \
    --arg diff "sha256:$(sha256sum "$work/layer" | cut -d ' ' -f 1)" '{
      created: $created, architecture: $architecture, os: "linux",
      config: {
        User: "65532:65532",
        WorkingDir: "/var/lib/fedbandit",
        Entrypoint: ["/usr/bin/fedbandit"],
        Cmd: ["serve"],
        Env: ["FEDBANDIT_DIR=/var/lib/fedbandit", "FEDBANDIT_LISTEN=0.0.0.0:7700", "FEDBANDIT_HTTP=0.0.0.0:7780"],
        ExposedPorts: {"7700/tcp": {}, "7780/tcp": {}},
        Volumes: {"/var/lib/fedbandit": {}},
        Labels: {
          "org.opencontainers.image.title": "fedbandit",
          "org.opencontainers.image.version": $version,
          "org.opencontainers.image.licenses": "MIT OR Apache-2.0"
        }
      },
      rootfs: {type: "layers", diff_ids: [$diff]},
      history: [{created: $created, created_by: "packaging/image.sh"}]
    }' | blob config.v1+json
)
manifest=$(
  jq -n --argjson config "$config" --argjson layer "$layer" \
    '{schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: $config, layers: [$layer]}' |
    blob manifest.v1+json
)
jq -n --argjson manifest "$manifest" --arg version "$(version)" \
  '{schemaVersion: 2, manifests: [$manifest + {annotations: {"org.opencontainers.image.ref.name": $version}}]}' >"$out/index.json"
echo '{"imageLayoutVersion": "1.0.0"}' >"$out/oci-layout"
echo "image $(version) in $out"
