//! A complete edge device: joins a controller over its serial line, learns with the fleet, survives resets and a lost link.
//!
//! The main loop processes received bytes, sends the frame that is due and runs one step of the episode. State that must
//! survive a reset is saved whenever it changes.
#![no_std]
#![no_main]

mod board;
mod clock;
mod environment;
mod mmio;
mod retained_ram;
mod saved_state;
mod uart;

use core::panic::PanicInfo;

use cortex_m::asm::wfi;
use cortex_m_rt::entry;
use cortex_m_semihosting::debug;
use defmt::{error, info, warn};
#[cfg(feature = "rtt")]
use defmt_rtt as _;
#[cfg(feature = "semihosting")]
use defmt_semihosting as _;
use fedbandit_core::session::{Event, Session};
use fedbandit_core::wire::{Identity, cobs, max_frame_len};
use fedbandit_core::{Agent, Prior, Rewards};
use rand_pcg::Pcg32;

use crate::environment::{D, Environment};
use crate::saved_state::SavedState;

/// Length of the longest frame, in bytes.
const FRAME: usize = max_frame_len(D);

/// Largest number of unacknowledged summaries.
const WINDOW: usize = 4;

/// Longest wait for a new model before the next episode starts with the last valid one, in milliseconds.
///
/// Must exceed the controller's deadline, 60 s by default. Tests override it with the environment variable `PATIENCE`.
const PATIENCE: u64 = match option_env!("PATIENCE") {
    None => 90_000,
    Some(text) => match u64::from_str_radix(text, 10) {
        Ok(patience) => patience,
        Err(_) => panic!("PATIENCE must be a number of milliseconds"),
    },
};

/// Prior of an agent without a saved state. The device waits for its first model, so no step uses it.
const PRIOR: Prior = Prior { lambda: 1.0, beta: 1.0, episode_len: 64, rewards: Rewards::Clipped };

struct Device {
    agent: Agent<D>,
    session: Session<FRAME, WINDOW>,
    environment: Environment,
    decoder: cobs::Decoder<FRAME>,
    /// For the jitter of retries.
    rng: Pcg32,
    /// True once the agent has applied a model.
    joined: bool,
    /// Time at which the running episode starts with the last valid model if no new one arrives.
    deadline: u64,
}

#[entry]
fn main() -> ! {
    let mut device = start();
    loop {
        device.receive();
        device.transmit();
        device.step();
    }
}

/// Initialises the board and restores the state saved before the last reset.
// Separate from `main`, so that its stack frame is released before the main loop.
#[inline(never)]
fn start() -> Device {
    board::init();
    if let Some(peripherals) = cortex_m::Peripherals::take() {
        board::start_timer(peripherals.SYST);
    }
    let identity = Identity::from_blob(&mmio::flash(board::IDENTITY));
    let Some(identity) = identity.filter(|identity| usize::from(identity.dimension) == D) else {
        error!("no valid identity for dimension {=usize} at {=usize:#x}; flash the device's blob", D, board::IDENTITY);
        halt()
    };
    let saved = SavedState::load();
    info!("agent {=u32} of run {=u32}, boot {=u32}", identity.agent, identity.run, saved.boot);
    // Delimits whatever the line carried while the board was starting.
    uart::send([0].into_iter());
    Device::new(identity, &saved)
}

impl Device {
    fn new(identity: Identity, saved: &SavedState) -> Self {
        let environment = Environment::new(identity.agent, saved.boot);
        let rng = Pcg32::new(identity.agent.into(), !u64::from(saved.boot));
        let mut session = Session::<FRAME, WINDOW>::new(identity, saved.boot);
        saved.resume(&mut session);
        let restored = saved.agent();
        let joined = restored.is_some();
        if let Some(agent) = &restored {
            info!("restored episode {=u32} with {=u32} steps", agent.episode(), agent.steps());
        }
        let Some(mut agent) = restored.or_else(|| Agent::new(&PRIOR).ok()) else { halt() };
        // A reset between saving a summary and saving the agent leaves the agent in an episode that has ended.
        while session.newest().is_some_and(|newest| newest >= agent.episode()) {
            agent.finish();
        }
        let deadline = clock::now() + PATIENCE;
        Self { agent, session, environment, decoder: cobs::Decoder::new(), rng, joined, deadline }
    }

    /// Processes the bytes received since the last call.
    fn receive(&mut self) {
        while let Some(byte) = uart::receive() {
            let Some(frame) = self.decoder.push(byte) else { continue };
            match self.session.handle(frame, &mut self.agent, clock::now()) {
                Ok(Event::Model { episode }) => {
                    self.joined = true;
                    saved_state::save_agent(&self.agent);
                    info!("model of episode {=u32}", episode);
                }
                Ok(Event::ModelRefused(reason)) => warn!("model rejected: {}", reason),
                Ok(Event::Ignored) => {}
                Ok(event) => {
                    info!("{}", event);
                    saved_state::save_outbox(&self.session);
                }
                Err(reason) => warn!("frame dropped: {}", reason),
            }
        }
    }

    /// Sends the frame that is due, if any.
    fn transmit(&mut self) {
        let mut frame = [0; FRAME];
        let length = self.session.poll(self.agent.episode(), clock::now(), &mut self.rng, &mut frame);
        if let Some(frame) = length.and_then(|length| frame.get(..length)) {
            uart::send(cobs::encode(frame));
        }
    }

    /// Runs one step of the episode, or sleeps while waiting for a model.
    fn step(&mut self) {
        if self.session.wants_model() && !(self.joined && clock::now() >= self.deadline) {
            wfi();
            return;
        }
        let decision_set = self.environment.decision_set();
        let action = self.agent.select(&decision_set).ok().and_then(|choice| decision_set.get(choice.index));
        if let Some(action) = action {
            let reward = self.environment.reward(action);
            if self.agent.record(action, reward).is_err() {
                warn!("step not recorded");
            }
        }
        if self.agent.steps() >= self.agent.episode_len() {
            let summary = self.agent.finish();
            info!("episode {=u32} finished", summary.episode());
            self.session.submit(&summary, clock::now());
            saved_state::save_outbox(&self.session);
            self.deadline = clock::now() + PATIENCE;
        }
        saved_state::save_agent(&self.agent);
        if self.agent.steps() == self.agent.episode_len() / 2 {
            info!("half of episode {=u32} recorded", self.agent.episode());
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    error!("{}", defmt::Display2Format(info));
    halt()
}

/// Exits QEMU with a failure. On hardware, sleeps until the watchdog or the reset button restarts the device.
fn halt() -> ! {
    if cfg!(feature = "semihosting") {
        debug::exit(debug::EXIT_FAILURE);
    }
    loop {
        wfi();
    }
}
