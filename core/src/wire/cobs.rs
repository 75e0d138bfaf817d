//! Consistent overhead byte stuffing: frames on a byte stream, each ended by a zero byte that occurs nowhere inside.
//!
//! A stuffed frame is a row of groups: a length byte n, then n − 1 bytes that are not zero, then an unwritten zero unless n is 255 or the
//! frame ends. Encoding needs no second buffer, decoding one that the receiver bounds.

use heapless::Vec;

/// The longest run of data in a group.
const GROUP: usize = 254;

/// The stuffed bytes of a frame, the ending zero included: at most `frame.len() + frame.len() / 254 + 2`.
pub fn encode(frame: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = Some(frame);
    let groups = core::iter::from_fn(move || {
        let data = rest?;
        let run = data.iter().take(GROUP).take_while(|byte| **byte != 0).count();
        let (group, after) = data.split_at_checked(run)?;
        rest = match after.split_first() {
            None => None,
            // A full group stands for its data alone; any other also for the zero after it.
            Some(_) if run == GROUP => Some(after),
            Some((_, after)) => Some(after),
        };
        Some(group)
    });
    groups.flat_map(|group| core::iter::once(group.len() as u8 + 1).chain(group.iter().copied())).chain([0])
}

/// Collects the bytes of a stream into frames of at most N bytes.
///
/// A frame that is longer or badly stuffed is dropped whole, and counted; the next zero byte starts afresh.
#[derive(Clone, Debug, Default)]
pub struct Decoder<const N: usize> {
    frame: Vec<u8, N>,
    /// Data bytes left in the group.
    left: u8,
    /// Whether a zero follows the group.
    zero_follows: bool,
    broken: bool,
    complete: bool,
    dropped: u32,
}

impl<const N: usize> Decoder<N> {
    /// A decoder at the start of a frame.
    pub const fn new() -> Self {
        Self { frame: Vec::new(), left: 0, zero_follows: false, broken: false, complete: false, dropped: 0 }
    }

    /// Takes the next byte of the stream; returns a frame when the byte ends one.
    pub fn push(&mut self, byte: u8) -> Option<&[u8]> {
        if self.complete {
            self.start();
        }
        if byte == 0 {
            return self.end();
        }
        if self.left > 0 {
            self.left -= 1;
            self.append(byte);
        } else {
            if self.zero_follows {
                self.append(0);
            }
            self.left = byte - 1;
            self.zero_follows = byte != 255;
        }
        None
    }

    /// How many frames were dropped because they were too long or badly stuffed.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    fn end(&mut self) -> Option<&[u8]> {
        let nothing = self.frame.is_empty() && !self.zero_follows && self.left == 0 && !self.broken;
        if self.broken || self.left > 0 {
            self.dropped = self.dropped.saturating_add(1);
            self.start();
            return None;
        }
        self.complete = true;
        if nothing { None } else { Some(&self.frame) }
    }

    fn append(&mut self, byte: u8) {
        self.broken |= self.frame.push(byte).is_err();
    }

    fn start(&mut self) {
        *self = Self { dropped: self.dropped, ..Self::new() };
    }
}
