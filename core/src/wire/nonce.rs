//! Nonces of sealed frames. A nonce must never repeat under one key; `docs/wire.md` proves that it does not.

use super::cipher::NONCE_LEN;

/// A nonce for one frame: sealing a frame consumes it.
pub(super) struct Nonce(pub(super) [u8; NONCE_LEN]);

/// All nonces of one start: the boot counter, then a frame counter that also runs on from one run to the next.
pub(super) struct Nonces {
    boot: u32,
    /// The next frame's counter; `None` once all are used.
    counter: Option<u64>,
}

impl Nonces {
    pub(super) const fn new(boot: u32) -> Self {
        Self { boot, counter: Some(0) }
    }

    pub(super) fn next(&mut self) -> Option<Nonce> {
        let counter = self.counter?;
        self.counter = counter.checked_add(1);
        let [b0, b1, b2, b3] = self.boot.to_le_bytes();
        let [c0, c1, c2, c3, c4, c5, c6, c7] = counter.to_le_bytes();
        Some(Nonce([b0, b1, b2, b3, c0, c1, c2, c3, c4, c5, c6, c7]))
    }
}

#[cfg(test)]
mod tests {
    use super::Nonces;

    #[test]
    fn nonces_run_out_before_they_repeat() {
        let mut nonces = Nonces { boot: 1, counter: Some(u64::MAX - 1) };
        let last = [nonces.next(), nonces.next()].map(|nonce| nonce.map(|nonce| nonce.0));
        assert_eq!(last, [254, 255].map(|low| Some([1, 0, 0, 0, low, 255, 255, 255, 255, 255, 255, 255])));
        assert!(nonces.next().is_none() && nonces.next().is_none());
    }
}
