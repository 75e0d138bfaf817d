//! Delays between attempts to reconnect.

use std::time::Duration;

/// Exponential backoff: delays double from 250 ms to 5 s.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    delay: Duration,
    /// Share of each delay that is waited, in sixteenths.
    sixteenths: u32,
}

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(5);

impl Default for Backoff {
    fn default() -> Self {
        Self { delay: FIRST, sixteenths: 16 }
    }
}

impl Backoff {
    /// Shortens the delays by a share that depends on the peer's number, so that peers do not reconnect in step.
    pub fn spread(self, peer: u32) -> Self {
        Self { sixteenths: 8 + peer % 8, ..self }
    }

    /// Returns the delay before the next attempt, and doubles the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.delay * self.sixteenths / 16;
        self.delay = (2 * self.delay).min(LONGEST);
        delay
    }

    /// Sleeps until the next attempt is due.
    pub async fn wait(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    /// Starts again with the shortest delay, after a successful attempt.
    pub fn reset(&mut self) {
        self.delay = FIRST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_until_reset() {
        let mut backoff = Backoff::default();
        let delays: Vec<u128> = (0..7).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(delays, [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000]);
        backoff.reset();
        assert_eq!(backoff.next_delay(), FIRST);
    }

    #[test]
    fn spread_delays_differ_between_peers_and_are_at_least_half() {
        let delays: Vec<Duration> = (0..8).map(|peer| Backoff::default().spread(peer).next_delay()).collect();
        assert!(delays.is_sorted_by(|a, b| a < b), "{delays:?}");
        assert!(delays.iter().all(|delay| *delay >= FIRST / 2 && *delay < FIRST), "{delays:?}");
    }
}
