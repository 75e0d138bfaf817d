//! The bits that every target must reproduce; the firmware repeats these runs.

use fedbandit_core::fingerprint;
use rand_pcg::Pcg32;
use rand_pcg::rand_core::SeedableRng;

/// Of dimensions 4, 8, 16 and 32.
const FINGERPRINTS: [u64; 4] =
    [14_995_942_170_868_315_241, 9_401_485_950_117_335_156, 14_308_525_626_624_260_638, 2_534_675_148_950_578_132];

/// 10,000 steps with `Pcg32::seed_from_u64(2022)`.
fn run<const D: usize>() -> u64 {
    fingerprint::<D>(&mut Pcg32::seed_from_u64(2022), 10_000).unwrap()
}

/// The numbers were computed on x86-64 and found on Cortex-M0, M3, M4F and M33. They change with the definition of the arithmetic, and
/// with nothing else.
#[test]
fn fingerprints_are_those_of_every_target() {
    assert_eq!([run::<4>(), run::<8>(), run::<16>(), run::<32>()], FINGERPRINTS);
}

#[test]
fn another_seed_gives_another_fingerprint() {
    assert_ne!(fingerprint::<4>(&mut Pcg32::seed_from_u64(2023), 10_000), Ok(run::<4>()));
}
