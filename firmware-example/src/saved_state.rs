//! State that survives a reset, and its layout in retained RAM.
//!
//! | offset | bytes | content |
//! |---|---|---|
//! | 0 | 8 | boot counter and its complement |
//! | 8 | 8 | run and its complement |
//! | 16 | 2 × `DeviceAgent::SAVED_LEN` | agent, in two slots written alternately: a reset corrupts at most one |
//! | then | W × (2 + F) | unacknowledged summaries: length, frame with its own tag |

use fedbandit_core::Guard;
use fedbandit_core::session::Session;

use crate::device_agent::DeviceAgent;
use crate::environment::D;
use crate::{FRAME, WINDOW, retained_ram};

const BOOT: usize = 0;
const RUN: usize = 8;
const AGENTS: usize = 16;
const AGENT_LEN: usize = DeviceAgent::SAVED_LEN;
const OUTBOX: usize = AGENTS + 2 * AGENT_LEN;
const SLOT_LEN: usize = 2 + FRAME;

const _: () = assert!(OUTBOX + WINDOW * SLOT_LEN <= retained_ram::LEN);

/// State saved before the reset. Its parts are read one by one, since a copy of all would fill the stack of a small board.
pub struct SavedState {
    /// Boot counter, including this start.
    pub boot: u32,
    /// The device's run; 0 if unknown.
    pub run: u32,
}

impl SavedState {
    /// Loads boot counter and run, and increments the boot counter.
    pub fn load() -> Self {
        let boot = number_at(BOOT).map_or(1, |last| last.wrapping_add(1));
        save_number(BOOT, boot);
        Self { boot, run: number_at(RUN).unwrap_or_default() }
    }

    /// Returns the saved agent: the newer of the valid copies.
    pub fn agent(&self, guard: Option<Guard>) -> Option<DeviceAgent> {
        let [first, second] = [0, 1].map(|slot| restored_age(slot, guard));
        restored_agent(if second > first { 1 } else { 0 }, guard)
    }

    /// Returns to the run and queues its unacknowledged summaries. A corrupt one fails its tag check and is skipped.
    pub fn resume(&self, session: &mut Session<D, FRAME, WINDOW>) {
        session.resume_run(self.run);
        for slot in 0..WINDOW {
            let bytes = retained_ram::load::<SLOT_LEN>(OUTBOX + slot * SLOT_LEN);
            let Some((length, frame)) = bytes.split_first_chunk() else { continue };
            if let Some(frame) = frame.get(..u16::from_le_bytes(*length).into()) {
                _ = session.resume(frame);
            }
        }
    }
}

/// Returns the age of the agent in a slot; `None` if the slot is invalid.
// Not inlined, as below: the copies of the agent would add up in the caller's stack frame.
#[inline(never)]
fn restored_age(slot: usize, guard: Option<Guard>) -> Option<(u32, u32)> {
    restored_agent(slot, guard).as_ref().map(age)
}

#[inline(never)]
fn restored_agent(slot: usize, guard: Option<Guard>) -> Option<DeviceAgent> {
    DeviceAgent::restore(&retained_ram::load::<AGENT_LEN>(AGENTS + slot * AGENT_LEN), guard)
}

/// Reads a number saved with its complement; `None` if they do not match.
fn number_at(offset: usize) -> Option<u32> {
    let [number, complement] = [offset, offset + 4].map(|offset| u32::from_le_bytes(retained_ram::load(offset)));
    (number == !complement).then_some(number)
}

fn save_number(offset: usize, number: u32) {
    retained_ram::store(offset, &number.to_le_bytes());
    retained_ram::store(offset + 4, &(!number).to_le_bytes());
}

/// Saves the run.
pub fn save_run(run: u32) {
    save_number(RUN, run);
}

/// Saves the agent after a step. The slots alternate with the steps, so the previous copy stays valid during the write.
pub fn save_agent(agent: &DeviceAgent) {
    let (episode, steps) = age(agent);
    save_agent_to(&[(episode ^ steps) as usize % 2], agent);
}

/// Saves the agent to both slots, one after the other. For an agent that may have returned to an earlier episode: the outdated
/// copy would look newer.
pub fn replace_agent(agent: &DeviceAgent) {
    save_agent_to(&[0, 1], agent);
}

fn save_agent_to(slots: &[usize], agent: &DeviceAgent) {
    let mut bytes = [0; AGENT_LEN];
    if agent.save(&mut bytes).is_ok() {
        slots.iter().for_each(|slot| retained_ram::store(AGENTS + slot * AGENT_LEN, &bytes));
    }
}

fn age(agent: &DeviceAgent) -> (u32, u32) {
    (agent.episode(), agent.steps())
}

/// Saves the unacknowledged summaries and marks the remaining slots as empty.
pub fn save_outbox(session: &Session<D, FRAME, WINDOW>) {
    let frames = session.unacknowledged().chain(core::iter::repeat(&[][..]));
    for (slot, frame) in frames.take(WINDOW).enumerate() {
        let at = OUTBOX + slot * SLOT_LEN;
        retained_ram::store(at, &(frame.len() as u16).to_le_bytes());
        retained_ram::store(at + 2, frame);
    }
}
