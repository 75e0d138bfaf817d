//! Corpus files: the inputs of one target in `fuzz/corpus/TARGET.txt`.
//!
//! Each input is a line, escaped by [`slice::escape_ascii`]. The first line holds the number of inputs and the SHA-256 of
//! all other lines, so that a damaged file is rejected.

use std::fs;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

/// Reads the corpus of a target.
///
/// # Errors
/// The file is missing, empty or damaged.
pub fn read(target: &str) -> Result<Vec<Vec<u8>>, String> {
    let path = path(target);
    let inputs = fs::read_to_string(&path).map_err(|error| error.to_string()).and_then(|text| decode(&text));
    inputs.map_err(|error| format!("{}: {error}; restore it or run ./ci.sh fuzz --write", path.display()))
}

/// Replaces the corpus of a target.
///
/// # Errors
/// The file cannot be written.
pub fn write(target: &str, inputs: Vec<Vec<u8>>) -> Result<(), String> {
    let path = path(target);
    fs::write(&path, encode(inputs)).map_err(|error| format!("{}: {error}", path.display()))
}

/// Returns the corpus file of a target.
pub fn path(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target).with_extension("txt")
}

fn encode(mut inputs: Vec<Vec<u8>>) -> String {
    inputs.sort();
    inputs.dedup();
    let lines: String = inputs.iter().map(|input| format!("{}\n", input.escape_ascii())).collect();
    header(&lines) + &lines
}

fn decode(text: &str) -> Result<Vec<Vec<u8>>, String> {
    let lines = text.split_inclusive('\n').next().map_or("", |header| &text[header.len()..]);
    if lines.is_empty() {
        return Err("corpus is empty".into());
    }
    if text != header(lines) + lines {
        return Err("corpus is damaged: its lines do not match the checksum".into());
    }
    lines.lines().map(|line| unescape(line).ok_or_else(|| format!("invalid escape in {line:?}"))).collect()
}

fn header(lines: &str) -> String {
    let digest: String = Sha256::digest(lines).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} inputs, SHA-256 {digest}\n", lines.lines().count())
}

/// Inverts [`slice::escape_ascii`].
fn unescape(line: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut characters = line.bytes();
    while let Some(byte) = characters.next() {
        bytes.push(match byte {
            b'\\' => match characters.next()? {
                b't' => b'\t',
                b'r' => b'\r',
                b'n' => b'\n',
                b'x' => {
                    let digits = [characters.next()?, characters.next()?];
                    u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
                }
                byte @ (b'\\' | b'\'' | b'"') => byte,
                _ => return None,
            },
            byte => byte,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> Vec<Vec<u8>> {
        vec![vec![], (0..=255).collect(), b"a = \"b\"\r\n".to_vec()]
    }

    #[test]
    fn corpus_is_restored() {
        let mut sorted = inputs();
        sorted.sort();
        assert_eq!(decode(&encode([inputs(), inputs()].concat())), Ok(sorted));
    }

    #[test]
    fn truncated_or_changed_corpus_is_rejected() {
        let text = encode(inputs());
        for end in 0..text.len() {
            assert!(decode(&text[..end]).is_err(), "truncated to {end} bytes");
            let mut changed = text.clone().into_bytes();
            changed[end] ^= 1;
            assert!(decode(&String::from_utf8(changed).unwrap()).is_err(), "changed at byte {end}");
        }
        assert!(decode(&encode(vec![])).is_err(), "no inputs");
    }
}
