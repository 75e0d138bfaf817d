//! ChaCha20-Poly1305 of RFC 8439.
//!
//! The stream cipher is written out here, Poly1305 is the crate's: in the crate `chacha20` the compiler leaves checks that can never fail, and
//! with them panics, at opt-level `z`. There are no tables and no branches on secrets.

use poly1305::Poly1305;
use poly1305::universal_hash::{KeyInit, UniversalHash};

use super::{HEADER_LEN, TAG_LEN};

/// Bytes of the nonce.
pub(super) const NONCE_LEN: usize = 12;

/// Four of the sixteen words of the state.
type Row = [u32; 4];

/// `expand 32-byte k`
const CONSTANTS: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// A key and a nonce, for one frame.
pub(super) struct Cipher {
    key: [Row; 2],
    nonce: [u32; 3],
}

impl Cipher {
    pub(super) fn new(key: &[u8; 32], nonce: &[u8; NONCE_LEN]) -> Self {
        let [k0, k1, k2, k3, k4, k5, k6, k7] = words(key);
        Self { key: [[k0, k1, k2, k3], [k4, k5, k6, k7]], nonce: words(nonce) }
    }

    /// The two halves of block 0.
    pub(super) fn keys(&self) -> [[u8; 32]; 2] {
        let mut keys = [[0; 32]; 2];
        let stream = self.block(0).into_iter().flatten().flat_map(u32::to_le_bytes);
        keys.iter_mut().flatten().zip(stream).for_each(|(to, from)| *to = from);
        keys
    }

    /// Encrypts or decrypts: the payload begins with block 1 of the key stream.
    pub(super) fn apply(&self, payload: &mut [u8]) {
        let mut counter = 1_u32;
        for bytes in payload.chunks_mut(64) {
            let stream = self.block(counter).into_iter().flatten().flat_map(u32::to_le_bytes);
            bytes.iter_mut().zip(stream).for_each(|(byte, key)| *byte ^= key);
            // Wraps after 256 GiB, which no frame has.
            counter = counter.wrapping_add(1);
        }
    }

    /// The tag of a header and an encrypted payload.
    pub(super) fn tag(&self, header: &[u8; HEADER_LEN], payload: &[u8]) -> [u8; TAG_LEN] {
        self.mac(header, payload).finalize().into()
    }

    /// Whether this is the tag, in constant time.
    pub(super) fn verify(&self, header: &[u8; HEADER_LEN], payload: &[u8], tag: &[u8; TAG_LEN]) -> bool {
        self.mac(header, payload).verify(tag.into()).is_ok()
    }

    /// Poly1305 under half of block 0, of the header, the payload filled up with zeros to whole blocks of 16 bytes, and their lengths.
    fn mac(&self, header: &[u8; HEADER_LEN], payload: &[u8]) -> Poly1305 {
        let [key, _] = self.keys();
        let mut mac = Poly1305::new(&key.into());
        let lengths = (HEADER_LEN as u128 | (payload.len() as u128) << 64).to_le_bytes();
        for bytes in [header.as_slice()].into_iter().chain(payload.chunks(16)).chain([lengths.as_slice()]) {
            let mut block = poly1305::Block::default();
            block.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
            mac.update(&[block]);
        }
        mac
    }

    /// A block of the key stream.
    fn block(&self, counter: u32) -> [Row; 4] {
        let ([low, high], [n0, n1, n2]) = (self.key, self.nonce);
        let start = [CONSTANTS, low, high, [counter, n0, n1, n2]];
        let mut state = start;
        for _ in 0..10 {
            // Down the columns, then down the diagonals: those are columns once the rows are turned.
            let [a, b, c, d] = quarter_rounds(state);
            let [a, b, c, d] = quarter_rounds([a, turn(b), turn(turn(c)), turn(turn(turn(d)))]);
            state = [a, turn(turn(turn(b))), turn(turn(c)), turn(d)];
        }
        for (row, start) in state.iter_mut().zip(start) {
            *row = zip(*row, start, u32::wrapping_add);
        }
        state
    }
}

/// The quarter round on each of the four columns.
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

/// The row, one place to the left.
fn turn([a, b, c, d]: Row) -> Row {
    [b, c, d, a]
}

/// The first N words of little-endian bytes.
fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}
