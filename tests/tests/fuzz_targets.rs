//! Fuzz targets on their corpus and on seeded mutations of it, with a limit on the memory that each input may allocate.

use std::collections::BTreeSet;
use std::fs;

use fedbandit_tests::fuzz::{TARGETS, corpus, examples};
use fedbandit_tests::harness::test_rng::TestRng;
use fedbandit_tests::record::thousands;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Mutations per target.
const MUTATIONS: u64 = 3_000;
/// Memory that a target may have allocated at any time: a constant, and bytes per byte of input.
///
/// Parsers of text keep dozens of bytes per field; the service and the status server need the constant.
const ALLOCATION_LIMIT: (usize, usize) = (1 << 20, 256);

const FUZZ: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz");

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn mutated(corpus: &[Vec<u8>], rng: &mut TestRng) -> Vec<u8> {
    let mut bytes = rng.pick(corpus).clone();
    for _ in 0..rng.within(1, 8) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        match rng.below(7) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.below(256) as u8),
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            3 if at < bytes.len() => bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff, b'9', b',', b'\n']),
            4 if at < bytes.len() => drop(bytes.remove(at)),
            5 => {
                let other = rng.pick(corpus);
                let from = rng.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => {
                let repeated = bytes[at..].to_vec();
                bytes.extend_from_slice(&repeated[..repeated.len().min(200)]);
            }
        }
    }
    bytes
}

/// A single test, since allocations are counted for the whole process.
#[test]
fn targets_accept_corpus_and_mutations() {
    every_target_is_a_libfuzzer_target();
    let mut all = 0;
    for (number, (name, body)) in TARGETS.into_iter().enumerate() {
        let corpus = [corpus::read(name).unwrap(), examples(name)].concat();
        let mut rng = TestRng::new(9, number as u64);
        // Memory that is allocated once does not count.
        corpus.iter().for_each(|input| body(input));
        let mutations = if name == "http_request" { MUTATIONS / 10 } else { MUTATIONS };
        all += mutations;
        for number in 0..mutations as usize + corpus.len() {
            let input = corpus.get(number).cloned().unwrap_or_else(|| mutated(&corpus, &mut rng));
            let before = MEMORY.current_usage();
            MEMORY.reset_peak_usage();
            body(&input);
            let allocated = MEMORY.peak_usage().saturating_sub(before);
            let limit = ALLOCATION_LIMIT.0 + ALLOCATION_LIMIT.1 * input.len();
            assert!(allocated <= limit, "{name}: {allocated} bytes allocated, limit {limit}, for {input:?}");
        }
    }
    let page = read(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reliability.md"));
    let cell = format!("| {} mutations |", thousands(all));
    assert!(page.contains(&cell), "docs/reliability.md lacks the cell {cell}");
}

/// Compares the programs and the corpus files of `fuzz/` with the table of targets.
fn every_target_is_a_libfuzzer_target() {
    let names: BTreeSet<&str> = TARGETS.into_iter().map(|(name, _)| name).collect();
    let manifest: toml::Table = toml::from_str(&read(&format!("{FUZZ}/Cargo.toml"))).unwrap();
    let programs = manifest["bin"].as_array().unwrap();
    assert_eq!(programs.iter().map(|program| program["name"].as_str().unwrap()).collect::<BTreeSet<_>>(), names);
    for name in &names {
        let call = format!("fedbandit_tests::fuzz::run(\"{name}\", data)");
        assert!(read(&format!("{FUZZ}/fuzz_targets/{name}.rs")).contains(&call), "fuzz target {name} lacks {call}");
    }
}
