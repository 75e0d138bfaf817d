# Functions of the packaging scripts.

epoch() { # time stamp of all files, so that equal sources give equal packages
  git log -1 --format=%ct 2>/dev/null || echo 0
}
version() { # of the workspace
  sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1
}
licenses() { # licence texts of the Rust packages that the program contains
  cargo tree --locked -q -p fedbandit-cli -e normal --prefix none --format '{p} {l}' | grep -v ' (/' | sort -u |
    while read -r name version license; do
      printf '%s %s: %s\n\n' "$name" "${version#v}" "${license% (\*)}"
      for file in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$name-${version#v}"/{LICEN[CS]E,COPYING,NOTICE}*; do
        [ ! -f "$file" ] || { cat "$file"; printf '\n\n'; }
      done
    done
}
