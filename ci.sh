#!/usr/bin/env bash
# Checks of the project, the same on a laptop and in CI. Needs Debian or Ubuntu, and Rust by rustup; installs the rest.
# `./ci.sh` runs every default step, `./ci.sh lint test` some steps, `./ci.sh --help` lists all of them.
set -u
shopt -s nullglob
cd "$(dirname "$0")" || exit 1

DEFAULT=(fmt lint test faults page docs nostd qemu python budget miri packages)
BACKGROUND=(nostd qemu budget)                             # single-core steps: after lint they run beside the others
NUMBERS=(budget claims page soak abuse fuzz planted bench) # steps that record numbers with --write
TARGETS=(thumbv6m-none-eabi thumbv7m-none-eabi thumbv7em-none-eabihf thumbv8m.main-none-eabihf)
records=target/ci
mkdir -p $records
export RUSTFLAGS="${RUSTFLAGS:--D warnings}" CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-auto}

say() { printf '\n==> %s\n' "$*"; }
is_in() { [[ " ${*:2} " == *" $1 "* ]]; } # WORD LIST...
skip() { skipped=$1; return 77; }         # REASON why a step cannot run on this machine

# --- set-up ---

apt_install() { # COMMAND PACKAGE...: installs the packages, unless the command exists
  command -v "$1" >/dev/null && return
  local root=()
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  say "installing ${*:2}"
  # Background steps may install at the same time.
  flock $records/apt.lock "${root[@]}" sh -c \
    'apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null' sh "${@:2}"
  command -v "$1" >/dev/null || { echo "missing: $1. Install it with: sudo apt-get install ${*:2}"; return 1; }
}
setup_host() {
  command -v rustup >/dev/null || { echo "missing: Rust 1.90 or later. Install it with rustup"; return 1; }
  apt_install cc gcc && apt_install c++ g++ || return
  { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1 || rustup component add rustfmt clippy
}
setup_embedded() { # Cortex-M targets: from rustup, or else with Debian's compiler as a toolchain
  setup_host || return
  [ -n "${FEDBANDIT_EMBEDDED_TOOLCHAIN:-}" ] || rustup -q target add "${TARGETS[@]}" && return
  say "rustup cannot add the targets: building core with Debian's compiler"
  apt_install /usr/bin/rustc rustc-web cargo-web rust-web-src lld || return
  firmware-example/debian-toolchain.sh fedbandit-embedded "${TARGETS[@]}" && export FEDBANDIT_EMBEDDED_TOOLCHAIN=fedbandit-embedded
}
setup_qemu() { setup_embedded && apt_install qemu-system-arm qemu-system-arm; }
setup_broker() { apt_install /usr/sbin/mosquitto mosquitto && apt_install mosquitto_pub mosquitto-clients; }
setup_packages() {
  apt_install promtool prometheus && apt_install systemd-analyze systemd && apt_install dpkg-shlibdeps dpkg-dev &&
    apt_install musl-gcc musl-tools && apt_install umoci umoci && apt_install jq jq && apt_install curl curl && setup_host
}

embedded_cargo() { env ${FEDBANDIT_EMBEDDED_TOOLCHAIN:+RUSTUP_TOOLCHAIN=$FEDBANDIT_EMBEDDED_TOOLCHAIN} cargo "$@"; }
# Always the whole workspace: `-p` would select other features, and rebuild the dependencies.
checks() { setup_host && cargo test --no-fail-fast --locked --workspace --all-features --profile checks "$@"; }
# The program of the test package, which cargo builds along with any of its tests.
measure() { checks -q --no-run --test faults && target/checks/fedbandit-tests "$@"; }

# Default steps:

step_fmt() { # formatting
  setup_host && cargo fmt --all --check && (cd firmware-example && cargo fmt --check)
}
step_lint() { # clippy, warnings denied, on the workspace and the firmware
  # In the profile of the tests, so that macros and build scripts are built once for both.
  setup_embedded && cargo clippy --locked --profile checks --workspace --all-targets --all-features &&
    cargo clippy --locked --profile checks -p fedbandit-core && cargo clippy --locked --profile checks -p fedbandit || return
  if cargo tree --locked -p fedbandit -e normal --prefix none | grep -E '^(axum|clap|redb|tokio) '; then
    echo "the library depends on these packages without its feature 'service'"
    return 1
  fi
  local check=clippy board
  [ -z "${FEDBANDIT_EMBEDDED_TOOLCHAIN:-}" ] || check=check # Debian's compiler has no clippy
  for board in mps2-an386:thumbv7em-none-eabihf netduinoplus2:thumbv7em-none-eabihf microbit:thumbv6m-none-eabi; do
    (cd firmware-example && embedded_cargo $check --locked --release --features "${board%:*}" --target "${board#*:}") || return
  done
}
step_test() { # unit, property and documentation tests of core and host
  setup_broker && apt_install python3 python3 && apt_install socat socat && apt_install openssl openssl || return
  local test tests=()
  for test in {core,host,host/*}/tests/{*.rs,*/main.rs}; do
    tests+=(--test "$(basename "${test%/main.rs}" .rs)")
  done
  checks --lib --bin fedbandit --bin fedbandit-tests --examples "${tests[@]}" && checks --doc
}
step_faults() { # 200 simulated fault scenarios, the store on a failing disk, seeded fuzzing, two measured claims
  checks --test faults --test planted --test storage --test fuzz_targets --test restart --test claims
}
step_page() { # status page in Chromium, screenshots in target/tmp; --write: docs/figures/status.png
  apt_install chromium chromium || skip "Chromium cannot be installed" || return
  checks --test program -- --ignored status_page:: || return
  [ "${1:-}" != --write ] || cp target/tmp/page-desk-light.png docs/figures/status.png
}
step_docs() { # rustdoc, warnings denied; the last line of ./ci.sh in README.md
  local last="ci: ${#DEFAULT[@]} passed, 0 failed, 0 skipped"
  grep -qx "$last" README.md || { echo "README.md lacks the line '$last'"; return 1; }
  setup_host && RUSTDOCFLAGS="-D warnings" cargo doc --locked --profile checks --workspace --no-deps --all-features
}
step_nostd() { # core builds for every Cortex-M target, and reaches no panic
  # Without features and with all; `qemu` builds those of the firmware.
  setup_embedded && embedded_cargo check --locked -q -p fedbandit-core --target="${TARGETS[0]}" &&
    embedded_cargo check --locked -q -p fedbandit-core "${TARGETS[@]/#/--target=}" --features defmt,serde,sealed &&
    checks --test panic_free
}
step_qemu() { # agent and device on every board under QEMU; boards and virtual devices in one fleet
  setup_qemu && setup_broker && checks --test qemu --test qemu_can_fail --test firmware_device --test mixed_fleet
}
step_python() { # device in Python, written from docs/wire.md, and the examples of that page
  apt_install python3 python3 && checks --test python_device
}
step_budget() { # RAM, flash and instructions against limits and core/budget.csv; --write: that file and its tables
  setup_qemu && measure budget "$@"
}
step_miri() { # core under Miri
  setup_host && { cargo +nightly miri --version >/dev/null 2>&1 ||
    rustup -q toolchain install nightly --profile minimal --component miri,rust-src ||
    skip "Miri cannot be installed"; } || return
  # Miri does not support inline assembly, which libm uses for square roots on x86.
  RUSTFLAGS="" cargo +nightly miri test --locked -p fedbandit-core --features libm/force-soft-floats --lib --test lifecycle
}
step_packages() { # alert rules, dashboard, systemd unit, Debian package, container image; --write: dashboard and table of metrics
  setup_packages && measure monitoring "$@" && checks --test monitoring && checks --test program -- --ignored promtool:: || return
  local target dist=target/packages root=()
  target=$(uname -m)-unknown-linux-musl
  rustup -q target add "$target" || skip "rustup cannot add $target" || return
  # Without optimisation: this program is only started.
  cargo build --locked --profile checks -p fedbandit-cli --target "$target" --config profile.checks.opt-level=0 || return
  rm -rf $dist
  packaging/deb.sh target/checks/fedbandit $dist/again && packaging/deb.sh target/checks/fedbandit $dist &&
    cmp $dist/*.deb $dist/again/*.deb && packaging/image.sh "target/$target/checks/fedbandit" $dist || return
  [ "$(id -u)" = 0 ] || root=(sudo -n)
  "${root[@]}" packaging/check.sh $dist
}

# Steps by name only:

step_setup() { setup_qemu && setup_broker; } # compilers, QEMU and an MQTT broker
step_bench() { setup_host && cargo bench --locked -p fedbandit -p fedbandit-cli --bench '*' -- "$@"; } # benchmarks, on a quiet machine; --write: docs/benchmarks.md
step_claims() { measure claims "$@"; } # two hours of simulations, resumable; --write: docs/simulation.md and README.md
step_soak() { measure soak --seeds 10000 "$@" && measure storage "$@"; } # simulated fault scenarios, every disk operation; --write: docs/reliability.md
step_abuse() { setup_broker && measure crash --kills 2000 "$@" && measure hostile --minutes 10 "$@"; } # kills, hostile devices; --write: docs/reliability.md
step_fuzz() { measure fuzz --seconds 60 "$@"; } # a minute of libFuzzer per target; --write: docs/reliability.md, fuzz/corpus
step_planted() { measure planted "$@"; } # planted bugs, which tests must find; --write: docs/reliability.md
step_peers() { apt_install python3 python3 && measure peers; } # aggregation rules against byzfl, noise against dp_accounting
step_publish() { setup_host && measure publish; } # packages by themselves, the oldest Rust, single features, cargo deny

# --- run ---

usage() {
  echo "usage: ./ci.sh [STEP ...] [--write]"
  sed -nE 's/^step_([a-z]+)\(\) \{.*# (.*)/  \1\t\2/p; s/^# (Default steps:|Steps by name only:)/\n\1/p' ci.sh | expand -t 12
  echo "  numbers   ${NUMBERS[*]}, all with --write, for hours"
}
run() { # STEP: runs it, and records its outcome
  local start=$SECONDS result skipped="see its output"
  say "$1"
  "step_$1" ${write:+--write}
  case $? in 0) result=passed ;; 77) result="skipped: $skipped" ;; *) result=FAILED ;; esac
  printf '%-8s %5d s  %s\n' "$1" $((SECONDS - start)) "$result" >"$records/$1"
}

write='' steps=() background=()
for argument in "$@"; do
  case $argument in
    -h | --help) usage; exit ;;
    --write) write=yes ;;
    numbers) steps+=("${NUMBERS[@]}") write=yes ;;
    *) declare -F "step_$argument" >/dev/null || { echo "unknown step '$argument'"; usage; exit 2; } >&2; steps+=("$argument") ;;
  esac
done
[ ${#steps[@]} != 0 ] || steps=("${DEFAULT[@]}")
(cd $records && rm -f "${steps[@]}")

for step in "${steps[@]}"; do
  is_in "$step" "${background[@]}" && continue
  run "$step"
  [ "$step" = lint ] && [ -z "$write" ] || continue
  for other in "${BACKGROUND[@]}"; do
    is_in "$other" "${steps[@]}" && [ ! -e "$records/$other" ] && background+=("$other")
  done
  [ ${#background[@]} != 0 ] || continue
  say "in the background, with output at the end and in $records/background.log: ${background[*]}"
  for step in "${background[@]}"; do run "$step"; done >$records/background.log 2>&1 </dev/null &
done
wait
[ ${#background[@]} = 0 ] || cat $records/background.log

report=$(cd $records && cat "${steps[@]}")
passed=$(grep -c ' s  passed$' <<<"$report") skipped=$(grep -c ' s  skipped: ' <<<"$report")
failed=$((${#steps[@]} - passed - skipped))
printf '\n%s\n\nci: %d passed, %d failed, %d skipped\n' "$report" "$passed" "$failed" "$skipped"
[ "$failed" = 0 ]
