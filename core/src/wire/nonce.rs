//! Nonces of sealed frames. A nonce must never repeat under one key; `docs/wire.md` proves that it does not.

use super::cipher::NONCE_LEN;

/// A nonce for one frame: sealing a frame consumes it.
pub(super) struct Nonce(pub(super) [u8; NONCE_LEN]);

/// All nonces of one start: the boot counter, the service's run, and a frame counter that runs on when the channel changes its
/// run or its identity.
pub(super) struct Nonces {
    boot: u32,
    /// Run of the service, which has its own boot counter for each run; 0 at a device.
    service: u32,
    /// The next frame's counter; `None` once all are used.
    counter: Option<u32>,
}

impl Nonces {
    pub(super) const fn new(boot: u32, service: u32) -> Self {
        Self { boot, service, counter: Some(0) }
    }

    pub(super) fn next(&mut self) -> Option<Nonce> {
        let counter = self.counter?;
        self.counter = counter.checked_add(1);
        let [b0, b1, b2, b3] = self.boot.to_le_bytes();
        let [s0, s1, s2, s3] = self.service.to_le_bytes();
        let [c0, c1, c2, c3] = counter.to_le_bytes();
        Some(Nonce([b0, b1, b2, b3, s0, s1, s2, s3, c0, c1, c2, c3]))
    }
}

#[cfg(test)]
mod tests {
    use super::Nonces;

    #[test]
    fn nonces_run_out_before_they_repeat() {
        let mut nonces = Nonces { boot: 1, service: 2, counter: Some(u32::MAX - 1) };
        let last = [nonces.next(), nonces.next()].map(|nonce| nonce.map(|nonce| nonce.0));
        assert_eq!(last, [254, 255].map(|low| Some([1, 0, 0, 0, 2, 0, 0, 0, low, 255, 255, 255])));
        assert!(nonces.next().is_none() && nonces.next().is_none());
    }
}
