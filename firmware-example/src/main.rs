//! A complete edge device: joins a controller over its serial line, learns with the fleet, survives resets and a lost link.
//! Its guard keeps liars and hostile controllers from ruining it.
//!
//! The main loop processes received bytes, sends the frame that is due and runs one step of the episode. While it waits for a
//! model, it sleeps until the next frame is due. State that must survive a reset is saved whenever it changes.
#![no_std]
#![no_main]

mod board;
mod clock;
mod device_agent;
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
use fedbandit_core::Guard;
use fedbandit_core::session::{Event, HEARTBEAT_INTERVAL, Session};
use fedbandit_core::wire::{Identity, IdentityError, cobs, max_frame_len};
use rand_pcg::Pcg32;

use crate::device_agent::DeviceAgent;
use crate::environment::{D, Environment};
use crate::saved_state::SavedState;

/// Length of the longest frame, in bytes.
const FRAME: usize = max_frame_len(D);

/// Largest number of unacknowledged summaries.
const WINDOW: usize = 4;

/// Longest wait for a new model before the next episode starts without one, in milliseconds.
///
/// Must exceed the controller's deadline, 60 s by default. Tests override it with the environment variable `PATIENCE`.
const PATIENCE: u64 = match option_env!("PATIENCE") {
    None => 90_000,
    Some(text) => match u64::from_str_radix(text, 10) {
        Ok(patience) => patience,
        Err(_) => panic!("PATIENCE must be a number of milliseconds"),
    },
};

struct Device {
    agent: DeviceAgent,
    session: Session<D, FRAME, WINDOW>,
    environment: Environment,
    decoder: cobs::Decoder<FRAME>,
    /// For the jitter of retries and the challenges of hellos. Seed it from a hardware generator if the chip has one: with a
    /// predictable challenge, a recorded answer can be replayed.
    rng: Pcg32,
    /// True once the agent has applied a model. The device waits for its first one, which tells the length of episodes.
    joined: bool,
    /// Time at which the running episode starts without a new model: on the own data or, without a guard, with the last one.
    deadline: u64,
    /// Number of alarms of the guard that were logged.
    alarms: u8,
}

#[entry]
fn main() -> ! {
    board::init();
    if let Some(peripherals) = cortex_m::Peripherals::take() {
        board::start_timer(peripherals.SYST);
    }
    let identity = Identity::from_blob(&mmio::flash(board::IDENTITY)).unwrap_or_else(|error| reject_identity(error));
    let saved = SavedState::load();
    let (agent, fleet) = (identity.agent(), identity.fleet());
    info!("agent {=u32} of fleet {=u32}, run {=u32}, boot {=u32}", agent, fleet, saved.run, saved.boot);
    // Delimits whatever the line carried while the board was starting.
    uart::send([0].into_iter());
    let guard = device_agent::guard(&identity);
    let mut device = Device::new(identity, guard, saved.boot);
    device.restore(&saved, guard);
    loop {
        device.receive();
        device.transmit();
        device.step();
    }
}

impl Device {
    /// Creates a device without saved state.
    // Not inlined, as below: the stack frame is released before the main loop.
    #[inline(never)]
    fn new(identity: Identity, guard: Option<Guard>, boot: u32) -> Self {
        let environment = Environment::new(identity.agent(), boot);
        let rng = Pcg32::new(identity.agent().into(), !u64::from(boot));
        let agent = DeviceAgent::new(guard).unwrap_or_else(|_| reject_identity(IdentityError::Constants));
        let mut session = Session::new(identity, boot).unwrap_or_else(|error| reject_identity(error));
        // The serial line may lead to a TCP connection, which the controller closes when idle.
        session.send_heartbeats(HEARTBEAT_INTERVAL);
        let (decoder, deadline) = (cobs::Decoder::new(), clock::now() + PATIENCE);
        Self { agent, session, environment, decoder, rng, joined: false, deadline, alarms: 0 }
    }

    /// Restores the state saved before the last reset.
    #[inline(never)]
    fn restore(&mut self, saved: &SavedState, guard: Option<Guard>) {
        saved.resume(&mut self.session);
        if let Some(agent) = saved.agent(guard) {
            info!("restored episode {=u32} with {=u32} steps", agent.episode(), agent.steps());
            (self.joined, self.alarms) = (true, agent.alarms());
            self.agent = agent;
        }
        // A reset between saving a summary and saving the agent leaves the agent in an episode that has ended.
        while self.session.newest_unacknowledged().is_some_and(|newest| newest >= self.agent.episode()) {
            self.agent.finish();
        }
    }

    /// Processes the bytes received since the last call.
    fn receive(&mut self) {
        while let Some(byte) = uart::receive() {
            let Some(frame) = self.decoder.push(byte) else { continue };
            match self.session.handle(frame, &mut self.agent, clock::now()) {
                Ok(Event::Model { episode }) => {
                    self.joined = true;
                    saved_state::replace_agent(&self.agent);
                    info!("model of episode {=u32}", episode);
                }
                Ok(Event::ModelRejected(reason)) => warn!("model rejected: {}", reason),
                Ok(Event::Acknowledged { episode, fate }) => {
                    saved_state::save_outbox(&self.session);
                    info!("summary of episode {=u32} acknowledged: {}", episode, fate);
                }
                Ok(Event::NextRun { run }) => {
                    self.enter_run(run);
                    info!("next run: {=u32}", run);
                }
                Ok(_) => {}
                Err(reason) => warn!("frame dropped: {}", reason),
            }
        }
    }

    /// Saves the state at the start of another run. An agent that never had a model is not saved.
    fn enter_run(&mut self, run: u32) {
        // The run after the agent: a reset in between returns to the old run, which leads here again.
        if self.joined {
            saved_state::replace_agent(&self.agent);
        }
        saved_state::save_run(run);
        saved_state::save_outbox(&self.session);
        self.deadline = clock::now() + PATIENCE;
        self.log_alarm();
    }

    /// Logs a new alarm of the guard.
    fn log_alarm(&mut self) {
        if self.agent.alarms() != self.alarms {
            self.alarms = self.agent.alarms();
            warn!("guard: models predicted rewards worse than own data, alarm {=u8}", self.alarms);
        }
    }

    /// Sends the frame that is due, if any.
    fn transmit(&mut self) {
        if let Some(frame) = self.session.poll(clock::now(), &mut self.rng) {
            uart::send(cobs::encode(frame));
        }
    }

    /// Sleeps until a byte arrives, a frame is due or the running episode must start without a new model.
    fn sleep(&self) {
        let deadline = if self.joined { self.deadline } else { u64::MAX };
        let wake_at = self.session.poll_at().unwrap_or(u64::MAX).min(deadline);
        // The clock's interrupt ends `wfi` every millisecond. A battery-powered device would program a wake-up timer instead.
        while uart::is_empty() && clock::now() < wake_at {
            wfi();
        }
    }

    /// Runs one step of the episode, or sleeps while waiting for a model.
    fn step(&mut self) {
        if self.session.wants_model() && !(self.joined && clock::now() >= self.deadline) {
            self.sleep();
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
            self.log_alarm();
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

/// Reports an identity that this firmware cannot use, and halts.
fn reject_identity(error: IdentityError) -> ! {
    error!("no valid identity at {=usize:#x}: {}", board::IDENTITY, error);
    error!("flash the blob of an enrolled device of dimension {=usize} with plain frames", D);
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
