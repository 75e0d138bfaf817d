//! ChaCha20-Poly1305 of RFC 8439.
//!
//! Poly1305 comes from the crate `poly1305`. ChaCha20 is implemented here because the crate `chacha20` keeps unreachable
//! panics at opt-level `z`, which would break the no-panic guarantee. No table lookup or branch depends on a secret.

use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};

use super::{HEADER_LEN, TAG_LEN};

/// Length of the nonce, in bytes.
pub(super) const NONCE_LEN: usize = 12;

/// Row of the 4×4 state.
type Row = [u32; 4];

/// `expand 32-byte k`
const CONSTANTS: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Cipher for one frame: a key and a nonce.
pub(super) struct Cipher {
    key: [Row; 2],
    nonce: [u32; 3],
}

impl Cipher {
    pub(super) fn new(key: &[u8; 32], nonce: &[u8; NONCE_LEN]) -> Self {
        let [k0, k1, k2, k3, k4, k5, k6, k7] = words(key);
        Self { key: [[k0, k1, k2, k3], [k4, k5, k6, k7]], nonce: words(nonce) }
    }

    /// Encrypts or decrypts a payload with the key stream from block 1 on.
    pub(super) fn apply(&self, payload: &mut [u8]) {
        let mut counter = 1_u32;
        for bytes in payload.chunks_mut(64) {
            let stream = self.block(counter).into_iter().flatten().flat_map(u32::to_le_bytes);
            bytes.iter_mut().zip(stream).for_each(|(byte, key)| *byte ^= key);
            // Wraps after 256 GiB, far beyond the longest frame.
            counter = counter.wrapping_add(1);
        }
    }

    /// Returns the tag of a header and an encrypted payload.
    pub(super) fn tag(&self, header: &[u8; HEADER_LEN], payload: &[u8]) -> [u8; TAG_LEN] {
        self.mac(header, payload).finalize().into()
    }

    /// Verifies the tag in constant time.
    pub(super) fn verify(&self, header: &[u8; HEADER_LEN], payload: &[u8], tag: &[u8; TAG_LEN]) -> bool {
        self.mac(header, payload).verify(tag.into()).is_ok()
    }

    /// Poly1305, keyed with the first half of block 0, over header and payload, each zero-padded to 16-byte blocks, and
    /// their lengths.
    fn mac(&self, header: &[u8; HEADER_LEN], payload: &[u8]) -> Poly1305 {
        let mut key = [0; 32];
        let stream = self.block(0).into_iter().flatten().flat_map(u32::to_le_bytes);
        key.iter_mut().zip(stream).for_each(|(to, from)| *to = from);
        let mut mac = Poly1305::new(&key.into());
        let lengths = (HEADER_LEN as u128 | (payload.len() as u128) << 64).to_le_bytes();
        for bytes in header.chunks(16).chain(payload.chunks(16)).chain([lengths.as_slice()]) {
            let mut block = poly1305::Block::default();
            block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            mac.update(&[block]);
        }
        mac
    }

    /// Returns one block of the key stream.
    fn block(&self, counter: u32) -> [Row; 4] {
        let ([low, high], [n0, n1, n2]) = (self.key, self.nonce);
        let start = [CONSTANTS, low, high, [counter, n0, n1, n2]];
        let mut state = start;
        for _ in 0..10 {
            // A column round, then a diagonal round: rotating the rows turns diagonals into columns.
            let [a, b, c, d] = quarter_rounds(state);
            let [a, b, c, d] = quarter_rounds([a, rotate(b), rotate(rotate(c)), rotate(rotate(rotate(d)))]);
            state = [a, rotate(rotate(rotate(b))), rotate(rotate(c)), rotate(d)];
        }
        for (row, start) in state.iter_mut().zip(start) {
            *row = zip(*row, start, u32::wrapping_add);
        }
        state
    }
}

/// Applies the quarter round to each of the four columns.
fn quarter_rounds([mut a, mut b, mut c, mut d]: [Row; 4]) -> [Row; 4] {
    for (left, right) in [(16, 12), (8, 7)] {
        a = zip(a, b, u32::wrapping_add);
        d = zip(d, a, |d, a| (d ^ a).rotate_left(left));
        c = zip(c, d, u32::wrapping_add);
        b = zip(b, c, |b, c| (b ^ c).rotate_left(right));
    }
    [a, b, c, d]
}

fn zip([a0, a1, a2, a3]: Row, [b0, b1, b2, b3]: Row, f: impl Fn(u32, u32) -> u32) -> Row {
    [f(a0, b0), f(a1, b1), f(a2, b2), f(a3, b3)]
}

/// Rotates a row one place to the left.
fn rotate([a, b, c, d]: Row) -> Row {
    [b, c, d, a]
}

/// Reads the first N little-endian words.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}
