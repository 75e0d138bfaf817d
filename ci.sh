#!/usr/bin/env bash
# The project's checks, the same on a laptop and in CI. `./ci.sh` runs all of them, `./ci.sh lint test` some,
# `./ci.sh numbers` puts new measurements on record. Needs Debian or Ubuntu and Rust; installs the rest.
set -u
cd "$(dirname "$0")" || exit 1

STEPS=(fmt lint test faults page docs nostd qemu python budget miri)
# Of these, what keeps one core busy at most. After `lint`, which fetches the targets, they run beside the others.
BESIDE=(nostd qemu budget)
# What has numbers on record; the last wants a quiet machine.
NUMBERS=(budget claims page soak abuse fuzz planted bench)
TARGETS=(thumbv6m-none-eabi thumbv7m-none-eabi thumbv7em-none-eabihf thumbv8m.main-none-eabihf)
all_passed="ci: ${#STEPS[@]} passed, 0 failed, 0 skipped"
records=target/ci
mkdir -p $records
export RUSTFLAGS="${RUSTFLAGS:--D warnings}" CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

usage() {
  echo "usage: ./ci.sh [STEP ...]"
  echo
  echo "  setup   install what the other steps need (they do so themselves)"
  echo "  fmt     formatting"
  echo "  lint    clippy, warnings denied, on the workspace and the firmware"
  echo "  test    unit, property and documentation tests of core and host"
  echo "  faults  the service and its devices in 200 worlds of faults, the store on a disk that fails, the targets of fuzzing"
  echo "  page    the status page in Chromium; screenshots stay in target/tmp; --write replaces docs/figures/status.png"
  echo "  docs    rustdoc, warnings denied"
  echo "  nostd   core builds for every Cortex-M target, and no panic can be reached in it"
  echo "  qemu    the agent and the device application on every board under QEMU; boards and virtual devices learn together"
  echo "  python  the device in Python, written from docs/wire.md, against a controller; the examples of that page"
  echo "  budget  RAM, flash and instructions against their limits and core/budget.csv; --write replaces the record"
  echo "  miri    core under Miri, where a nightly toolchain has it"
  echo
  echo "and by name only:"
  echo "  bench   the geometric median, noise, simulation, rules and service against limits and peers; --write replaces docs/benchmarks.md"
  echo "  claims  measures again what docs/simulation.md says, for half an hour; --write replaces it, its figures and README.md's output"
  echo "  soak    10,000 worlds of faults, and every operation of the disk; --write replaces both in docs/reliability.md"
  echo "  abuse   2,000 kills of the program, its broker and its devices; hostile devices for ten minutes; --write as above"
  echo "  fuzz    each target of fuzz/ under libFuzzer for a minute, where a nightly toolchain and cargo-fuzz are; --write as above"
  echo "  planted bugs are planted one by one, and must be found; --write replaces the table in docs/reliability.md"
  echo "  peers   the aggregation rules against byzfl, the calibration of noise against dp_accounting"
  echo "  numbers every number and figure of the documentation anew, for hours: ${NUMBERS[*]}, all with --write"
  echo "  publish what crates.io asks: packages that build alone, every feature by itself, the oldest Rust, cargo deny"
}

say() { printf '\n==> %s\n' "$*"; }

# A step that cannot run here sets this and returns 77.
skipped=
skip() { skipped=$1; return 77; }

# --- set-up ---------------------------------------------------------------------------------------------------------

apt_install() { # a command that must exist, the packages that bring it
  command -v "$1" >/dev/null && return
  local command=$1
  shift
  local root=()
  if [ "$(id -u)" != 0 ]; then
    if ! sudo -n true 2>/dev/null; then
      echo "missing: $command. Install it with: sudo apt-get install $*"
      return 1
    fi
    root=(sudo -n)
  fi
  say "installing $*"
  (
    flock 9 # two steps may install at once
    "${root[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  ) 9>"$records/apt.lock"
  command -v "$command" >/dev/null || { echo "missing: $command. It did not come with $*"; return 1; }
}

setup_host() {
  command -v cargo >/dev/null || { echo "missing: Rust 1.89 or later by rustup, with cargo on the PATH"; return 1; }
  apt_install cc gcc || return
  if ! cargo fmt --version >/dev/null 2>&1 || ! cargo clippy --version >/dev/null 2>&1; then
    rustup component add rustfmt clippy
  fi
}

# The thumb targets: from rustup, or else Debian's compiler as a toolchain of its own.
setup_embedded() {
  setup_host || return
  local missing=() target fallback=fedbandit-embedded
  for target in "${TARGETS[@]}"; do
    [ -d "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] || missing+=("$target")
  done
  [ ${#missing[@]} = 0 ] && return
  [ -n "${FEDBANDIT_EMBEDDED_TOOLCHAIN:-}" ] && return
  if ! rustup toolchain list 2>/dev/null | grep -q "^$fallback"; then
    say "adding ${missing[*]}"
    rustup target add "${missing[@]}" && return
    say "rustup cannot: building core with Debian's compiler instead"
    apt_install /usr/bin/rustc rustc-web cargo-web rust-web-src lld || return
  fi
  firmware-example/debian-toolchain.sh $fallback "${TARGETS[@]}" && export FEDBANDIT_EMBEDDED_TOOLCHAIN=$fallback
}

setup_qemu() { setup_embedded && apt_install qemu-system-arm qemu-system-arm; }

embedded_cargo() {
  if [ -n "${FEDBANDIT_EMBEDDED_TOOLCHAIN:-}" ]; then RUSTUP_TOOLCHAIN=$FEDBANDIT_EMBEDDED_TOOLCHAIN cargo "$@"; else cargo "$@"; fi
}

# Tests of the whole workspace, built with the same features each time: with `-p` or `--exclude` all would be built anew.
checks() { cargo test --locked --workspace --all-features --profile checks "$@"; }

# The long measurements behind the documentation. A test brings its package's program; `cargo build` would build all anew, for other features.
measure() { checks -q --no-run --test faults && target/checks/fedbandit-tests "$@"; }

# --- steps ----------------------------------------------------------------------------------------------------------

step_setup() { setup_qemu; }

step_fmt() { setup_host && cargo fmt --all --check && (cd firmware-example && cargo fmt --check); }

step_lint() {
  setup_embedded || return
  # In the profile of the tests, so that macros and build scripts are built once for both.
  cargo clippy --locked --profile checks --all-targets --all-features || return
  cargo clippy --locked --profile checks -p fedbandit-core || return
  # Debian's compiler comes without clippy.
  local check=clippy board
  [ -n "${FEDBANDIT_EMBEDDED_TOOLCHAIN:-}" ] && check=check
  for board in mps2-an386:thumbv7em-none-eabihf netduinoplus2:thumbv7em-none-eabihf microbit:thumbv6m-none-eabi; do
    (cd firmware-example && embedded_cargo $check --locked --release --features "${board%:*}" --target "${board#*:}") || return
  done
}

step_test() {
  # What the service is tested with: a device in Python, an MQTT broker and its clients, pseudo-terminals.
  setup_host && apt_install python3 python3 || return
  apt_install /usr/sbin/mosquitto mosquitto && apt_install mosquitto_pub mosquitto-clients && apt_install socat socat || return
  local test programs=()
  for test in core/tests/*.rs host/tests/*.rs host/tests/*/main.rs; do
    programs+=(--test "$(basename "${test%/main.rs}" .rs)")
  done
  checks --lib --bins --examples "${programs[@]}" && checks --doc
}

step_faults() { setup_host && checks --test faults --test storage --test fuzz_targets --test restart; }

step_page() {
  setup_host || return
  apt_install chromium chromium || { skip "Chromium cannot be had here"; return; }
  checks --test program -- --ignored page:: || return
  [ "${1:-}" != --write ] || cp target/tmp/page-desk-light.png docs/figures/status.png
}

step_docs() {
  setup_host || return
  grep -qx "$all_passed" README.md || { echo "README.md lacks: $all_passed"; return 1; }
  RUSTDOCFLAGS="-D warnings" cargo doc --locked --profile checks --no-deps --all-features
}

step_nostd() {
  setup_embedded || return
  # The firmware, which `qemu` builds for every target, has some features; here are none, and all.
  embedded_cargo check --locked -q -p fedbandit-core --target="${TARGETS[0]}" || return
  embedded_cargo check --locked -q -p fedbandit-core "${TARGETS[@]/#/--target=}" --features defmt,serde,sealed || return
  checks --test panic_free
}

step_qemu() {
  setup_qemu && apt_install /usr/sbin/mosquitto mosquitto || return
  checks --test qemu --test qemu_can_fail --test firmware_device --test mixed_fleet
}

step_python() {
  setup_host && apt_install python3 python3 && checks --test python_device
}

step_budget() { setup_qemu && measure budget "$@"; }

step_miri() {
  setup_host || return
  if ! cargo +nightly miri --version >/dev/null 2>&1; then
    say "adding a nightly toolchain with Miri"
    rustup toolchain install nightly --profile minimal --component miri,rust-src >/dev/null 2>&1 ||
      { skip "no nightly toolchain with Miri can be had here"; return; }
  fi
  # Miri has no inline assembly, which libm's square root is on x86.
  RUSTFLAGS="" cargo +nightly miri test --locked -p fedbandit-core --features libm/force-soft-floats --lib --test lifecycle
}

step_bench() {
  setup_host || return
  local bench
  for bench in median noise simulation rule service; do
    cargo bench --locked -p fedbandit --bench $bench -- "$@" || return
  done
}

step_soak() {
  setup_host || return
  measure soak --seeds 10000 "$@" &&
    measure storage "$@"
}

step_abuse() {
  setup_host && apt_install /usr/sbin/mosquitto mosquitto || return
  measure crash --kills 2000 "$@" &&
    measure hostile --minutes 10 "$@"
}

step_fuzz() {
  setup_host || return
  cargo +nightly fuzz --version >/dev/null 2>&1 ||
    { rustup toolchain install nightly --profile minimal && cargo install --locked cargo-fuzz; } >/dev/null 2>&1 ||
    { skip "no nightly toolchain with cargo-fuzz can be had here"; return; }
  measure fuzz --seconds 60 "$@"
}

step_planted() { setup_host && measure planted "$@"; }

step_claims() {
  setup_host && cargo build --locked --release -p fedbandit || return
  local out=target/claims
  [ "${1:-}" = --write ] && out=docs && { write_readme || return; }
  target/release/fedbandit reproduce --out $out
  local outcome=$?
  # 1: a limit is missed, which the page says; whether it says the same is compared all the same.
  [ $outcome -le 1 ] || return
  [ $out = docs ] || { diff -I '^Measured with fedbandit' docs/simulation.md $out/simulation.md && diff -qx status.png docs/figures $out/figures; } || return
  return $outcome
}

# Puts into README.md what its two commands print; tests and `docs` compare.
write_readme() {
  local output
  mkdir -p target/claims && output=$(cd target/claims && ../release/fedbandit simulate) || return
  OUTPUT=$output LAST=$all_passed awk '
    shown && /^\$/ { print "" }
    /^(\$|```)/ { shown = 0 }
    /^ci: / { $0 = ENVIRON["LAST"] }
    !shown { print }
    /^\$ cargo run .* simulate$/ { print ENVIRON["OUTPUT"]; shown = 1 }
  ' README.md >target/claims/README.md && cp target/claims/README.md README.md
}

step_peers() {
  setup_host && cargo build --locked --release -p fedbandit || return
  local venv=target/byzfl
  if ! [ -x $venv/bin/byzfl-is-here ]; then
    say "installing byzfl"
    python3 -m venv $venv && $venv/bin/pip install -q byzfl==0.0.11 numpy && ln -s python $venv/bin/byzfl-is-here ||
      { skip "byzfl cannot be installed here"; return; }
  fi
  $venv/bin/python host/tests/peers/rules.py target/release/fedbandit || return
  venv=target/dp_accounting
  if ! [ -x $venv/bin/dp-accounting-is-here ]; then
    say "installing dp-accounting"
    python3 -m venv $venv && $venv/bin/pip install -q dp-accounting==0.6.0 && ln -s python $venv/bin/dp-accounting-is-here ||
      { skip "dp-accounting cannot be installed here"; return; }
  fi
  $venv/bin/python host/tests/peers/privacy.py target/release/fedbandit
}

step_publish() {
  setup_host || return
  local oldest package feature
  oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  say "publish: the packages by themselves"
  cargo publish -q --dry-run --locked --allow-dirty --workspace || return
  say "publish: Rust $oldest, all features and each by itself"
  cargo "+$oldest" --version >/dev/null 2>&1 || rustup toolchain install "$oldest" --profile minimal || return
  cargo "+$oldest" check --locked -q --workspace --all-features || return
  for package in core host; do
    for feature in "" $(sed -n '/^\[features\]/,/^\[/s/^\([a-z]*\) = .*/\1/p' $package/Cargo.toml); do
      (cd $package && cargo "+$oldest" check --locked -q --no-default-features --features "$feature") ||
        { echo "the feature '$feature' of $package does not build by itself"; return 1; }
    done
  done
  rustup target add --toolchain "$oldest" thumbv7em-none-eabihf || return
  cargo "+$oldest" check --locked -q -p fedbandit-core --features defmt,serde,sealed --target thumbv7em-none-eabihf || return
  say "publish: cargo deny"
  command -v cargo-deny >/dev/null || cargo install -q --locked cargo-deny || return
  cargo deny --locked check licenses bans sources || return
  cargo deny fetch db || { skip "the database of advisories cannot be fetched; all else passed"; return; }
  cargo deny --locked check advisories
}

# --- run ------------------------------------------------------------------------------------------------------------

options=()
wanted=()
for argument in "$@"; do
  case $argument in
    -h | --help) usage; exit ;;
    --write) options=(--write) ;;
    numbers) wanted+=("${NUMBERS[@]}") options=(--write) ;;
    all) wanted+=("${STEPS[@]}") ;;
    *)
      declare -F "step_$argument" >/dev/null || { echo "no such step: $argument"; usage; exit 2; }
      wanted+=("$argument")
      ;;
  esac
done
[ ${#wanted[@]} = 0 ] && wanted=("${STEPS[@]}")

run() { # steps, one after the other; how each ends is put on record
  local step start result
  for step in "$@"; do
    say "$step"
    start=$SECONDS
    case $step in
      budget | claims | page | soak | abuse | fuzz | planted | bench) "step_$step" "${options[@]}" ;;
      *) "step_$step" ;;
    esac
    case $? in
      0) result=passed ;;
      77) result="skipped: $skipped" ;;
      *) result=FAILED ;;
    esac
    printf '%-8s %5d s  %s\n' "$step" $((SECONDS - start)) "$result" >"$records/$step"
  done
}

is_in() { [[ " ${*:2} " == *" $1 "* ]]; } # a word, words

beside=() rest=()
for step in "${wanted[@]}"; do
  rm -f "$records/$step"
  if [ ${#options[@]} = 0 ] && is_in "$step" "${BESIDE[@]}"; then beside+=("$step"); else rest+=("$step"); fi
done
if is_in lint "${rest[@]}" && [ ${#beside[@]} != 0 ]; then
  for at in "${!rest[@]}"; do
    run "${rest[at]}"
    [ "${rest[at]}" = lint ] && break
  done
  say "${beside[*]}: beside what follows; what they say comes at the end, and is in $records/beside.log"
  run "${beside[@]}" >$records/beside.log 2>&1 </dev/null &
  run "${rest[@]:at+1}"
  wait
  cat $records/beside.log
else
  run "${wanted[@]}"
fi

report=$(cd $records && cat "${wanted[@]}")
count() { grep -c "$1" <<<"$report"; }
passed=$(count ' s  passed$') left_out=$(count ' s  skipped: ')
failed=$((${#wanted[@]} - passed - left_out))
printf '\n%s\n\n' "$report"
echo "ci: $passed passed, $failed failed, $left_out skipped"
[ "$failed" = 0 ]
