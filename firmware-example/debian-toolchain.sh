#!/bin/sh
# Builds a Cortex-M toolchain where `rustup target add` cannot download one: compiles `core` once, from Debian's Rust
# sources with Debian's compiler, and links the result into rustup as a separate toolchain. Nothing under /usr changes.
# usage: debian-toolchain.sh NAME TARGET ...
set -eu
name=$1
shift
dir=${XDG_DATA_HOME:-$HOME/.local/share}/$name
host=$(/usr/bin/rustc -vV | sed -n 's/^host: //p')
system=$(/usr/bin/rustc --print sysroot)/lib/rustlib

mkdir -p "$dir/bin" "$dir/lib/rustlib/$host/bin"
ln -sfn /usr/bin/cargo "$dir/bin/cargo"
ln -sfn /usr/bin/rustdoc "$dir/bin/rustdoc"
printf '#!/bin/sh\nexec /usr/bin/rustc --sysroot "%s" "$@"\n' "$dir" >"$dir/bin/rustc"
chmod +x "$dir/bin/rustc"
ln -sfn "$system/$host/lib" "$dir/lib/rustlib/$host/lib"
ln -sfn "$system/src" "$dir/lib/rustlib/src"
ln -sfn "$(command -v lld)" "$dir/lib/rustlib/$host/bin/rust-lld"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/src"
echo '#![no_std]' >"$work/src/lib.rs"
cat >"$work/Cargo.toml" <<'TOML'
[package]
name = "sysroot"
version = "0.0.0"
edition = "2021"
[profile.release]
opt-level = 3
panic = "abort"
TOML
for target in "$@"; do
  [ -e "$dir/lib/rustlib/$target/complete" ] && continue
  echo "building core for $target"
  # RUSTC_BOOTSTRAP is needed to build core itself. Embedded bitcode enables link-time optimisation across it.
  (cd "$work" && env -u RUSTUP_TOOLCHAIN RUSTC_BOOTSTRAP=1 RUSTC="$dir/bin/rustc" RUSTFLAGS=-Cembed-bitcode=yes \
    /usr/bin/cargo build -q --release -Zbuild-std=core,alloc --target "$target")
  rm -rf "$dir/lib/rustlib/$target"
  mkdir -p "$dir/lib/rustlib/$target/lib"
  for library in core alloc compiler_builtins; do
    cp "$work/target/$target/release/deps/lib$library-"*.rlib "$dir/lib/rustlib/$target/lib/"
  done
  touch "$dir/lib/rustlib/$target/complete"
done
rustup toolchain link "$name" "$dir"
