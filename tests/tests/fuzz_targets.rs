//! The fuzz targets on their corpus and on seeded mutations of it, with a limit on allocations.

use std::fs;
use std::path::PathBuf;

use fedbandit_tests::fuzz::{TARGETS, examples};
use fedbandit_tests::harness::test_rng::TestRng;
use peak_alloc::PeakAlloc;

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Number of mutations per target.
const MUTATIONS: u64 = 3_000;
/// Limit of allocated memory: a fixed number of bytes, and bytes per byte of the input. Parsers of text keep dozens of bytes
/// for each field; the service and the pages have a fixed size.
const ALLOCATED: (usize, usize) = (1 << 20, 256);

/// Reads the corpus of a target, and adds its initial inputs.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let kept = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    let mut files: Vec<PathBuf> = fs::read_dir(kept).into_iter().flatten().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| fs::read(file).unwrap()).chain(examples(target)).collect()
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

/// A single test, because allocations are counted for the whole process.
#[test]
fn mutated_corpus_breaks_no_target() {
    let mut all = 0;
    for (number, (name, body)) in TARGETS.into_iter().enumerate() {
        let corpus = corpus(name);
        let mut rng = TestRng::new(9, number as u64);
        // Allocations that happen once do not count.
        corpus.iter().for_each(|input| body(input));
        let mutations = if name == "http_request" { MUTATIONS / 10 } else { MUTATIONS };
        all += mutations;
        for number in 0..mutations as usize + corpus.len() {
            let input = corpus.get(number).cloned().unwrap_or_else(|| mutated(&corpus, &mut rng));
            let before = MEMORY.current_usage();
            MEMORY.reset_peak_usage();
            body(&input);
            let allocated = MEMORY.peak_usage().saturating_sub(before);
            assert!(allocated <= ALLOCATED.0 + ALLOCATED.1 * input.len(), "{name}: {allocated} bytes for {input:?}");
        }
    }
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reliability.md")).unwrap();
    assert!(
        page.contains(&format!("| {},{:03} mutations |", all / 1000, all % 1000)),
        "docs/reliability.md lacks the number {all}"
    );
}
