//! Calls every public function of `fedbandit-core` on opaque inputs, for dimension `$D`.
//!
//! The panic handler calls an undefined symbol, so the program links only if no panic is reachable. Linking is the test; the
//! program is never run. The feature `reachable-panic` adds a panic, to test that the check can fail.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::num::NonZeroU32;
use core::panic::PanicInfo;

use cortex_m_rt::entry;
use fedbandit_core::session::{HEARTBEAT_INTERVAL, Session};
use fedbandit_core::wire::{
    Channel, Identity, Message, cobs, is_model, max_frame_len, unverified_address, unverified_run,
};
use fedbandit_core::{
    Action, Agent, AsAction, Guard, GuardedAgent, Model, Prior, Rewards, Values, norm_squared_limit, packed_len,
    project, rounding,
};
use rand_pcg::Pcg32;

const D: usize = match usize::from_str_radix(env!("D"), 10) {
    Ok(dimension) => dimension,
    Err(_) => panic!("environment variable D must be the dimension"),
};

#[expect(unsafe_code, reason = "the only way to refer to an undefined symbol")]
mod undefined {
    unsafe extern "C" {
        pub safe fn a_panic_is_reachable() -> !;
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    undefined::a_panic_is_reachable()
}

#[entry]
fn main() -> ! {
    let mut rng: Pcg32 = black_box(Pcg32::new(1, 2));
    let mut saved = [0_u8; Agent::<D>::SAVED_LEN];
    if let Ok(mut agent) = Agent::<D>::new(black_box(&Prior::new(1.0, 1.0, 8, Rewards::Unbounded))) {
        loop {
            let (theta, design) = (Values::Native(&[]), Values::Wire(&[]));
            let model = black_box(Model::new(1, 8, 1.0, Rewards::Clipped, theta, design));
            _ = black_box(agent.begin(&model));
            _ = black_box((model.theta.len(), model.theta.is_empty(), model.theta.iter().count()));
            let decision_set: &[Action<D>] = black_box(&[]);
            call_selection(&mut agent, decision_set, &mut rng);
            call_selection(&mut agent, black_box::<&[[f32; D]]>(&[]), &mut rng);
            let summary = agent.finish();
            for value in summary.gram().chain(*summary.feature_sum()) {
                _ = black_box(value);
            }
            _ = black_box((summary.episode(), summary.steps(), summary.reward_sum()));
            _ = black_box((agent.episode(), agent.episode_len(), agent.steps(), agent.rewards(), agent.theta()));
            _ = black_box(agent.save(black_box(&mut saved)));
            if let Ok(restored) = Agent::restore(black_box(&saved)) {
                agent = restored;
            }
            call_wire(&mut agent, &mut rng);
            call_guard(&model, decision_set, &mut rng);
            _ = black_box((packed_len(black_box(3)), norm_squared_limit(black_box(3))));
            _ = black_box((rounding::sums(black_box(3), D), rounding::score(black_box(3), 1.0, 1.0, 1.0)));
            if cfg!(feature = "reachable-panic") {
                _ = black_box(decision_set[black_box(1)]);
            }
        }
    }
    loop {}
}

/// Calls the API of selecting and recording, for arrays or vectors.
fn call_selection<A: AsAction<D>>(agent: &mut Agent<D>, decision_set: &[A], rng: &mut Pcg32) {
    _ = black_box(agent.select(decision_set));
    _ = black_box(agent.select(decision_set.iter().map(project)));
    _ = black_box(agent.select_random_ties(decision_set, rng));
    for action in decision_set {
        _ = black_box(action.as_action());
        _ = black_box(agent.score(action));
        _ = black_box(agent.record(action, black_box(0.5)));
    }
}

/// Calls the API of the guarded agent.
fn call_guard(model: &Model<'_>, decision_set: &[Action<D>], rng: &mut Pcg32) {
    const T: usize = packed_len(D);
    let prior = Prior::new(1.0, 1.0, 8, Rewards::Unbounded);
    let guard = Guard { noise: 0.5, theta_norm: 1.0, max_episode_len: 65_536, half_life: NonZeroU32::new(64) };
    let Ok(mut agent) = GuardedAgent::<D, T>::new(black_box(&prior), black_box(guard)) else { return };
    _ = black_box(agent.begin(model));
    _ = black_box(agent.select_or_scout(decision_set, black_box(0.1), rng));
    for action in decision_set {
        _ = black_box(agent.record(action, black_box(0.5)));
    }
    _ = black_box(agent.finish());
    _ = black_box((agent.follows_controller(), agent.alarms(), agent.episode()));
    let mut saved = [0_u8; GuardedAgent::<D, T>::SAVED_LEN];
    _ = black_box(agent.save(black_box(&mut saved)));
    _ = black_box(GuardedAgent::<D, T>::restore(black_box(&saved), guard).is_ok());
    let Ok(mut session) = Session::<D, { max_frame_len(D) }, 2>::new(Identity::new(1, 2, D as u8, [0; 32]), 1) else {
        return;
    };
    _ = black_box(session.handle(black_box(&mut []), &mut agent, black_box(1)));
}

/// Calls the API of identities, frames, COBS and the session. The blob is opaque, so with the feature `sealed` its frames may be
/// plain or sealed.
fn call_wire(agent: &mut Agent<D>, rng: &mut Pcg32) {
    const FRAME: usize = max_frame_len(D);
    let identity = Identity::new(black_box(1), 2, D as u8, [0; 32]).with_constants(0.5, 1.0);
    #[cfg(feature = "sealed")]
    let identity = identity.with_sealed_frames();
    let Ok(identity) = Identity::from_blob(black_box(&identity.to_blob())) else { return };
    _ = black_box((identity.fleet(), identity.agent(), identity.dimension(), identity.is_sealed()));
    _ = black_box((identity.noise(), identity.theta_norm()));
    let received: &mut [u8] = black_box(&mut []);
    _ = black_box((unverified_address(received), unverified_run(received), is_model(received)));
    let mut device = black_box(Channel::device(identity.clone(), black_box(1)));
    let mut controller = black_box(Channel::controller(identity.clone(), black_box(1), black_box(1)));
    device.enter_run(black_box(7));
    _ = black_box(device.run());
    let mut buffer = [0; FRAME];
    if let Ok(message) = device.decode(received) {
        let message: &Message<'_> = black_box(&message);
        if let Message::Ack { fate, .. } = message {
            _ = black_box(fate.counts());
        }
        _ = black_box(controller.encode(message, black_box(&mut buffer)));
    }
    _ = black_box(device.encode_summary(&agent.finish(), black_box(&mut buffer)));
    let mut encoded = [0; cobs::max_encoded_len(FRAME)];
    _ = black_box(cobs::encode_into(black_box(&buffer), black_box(&mut encoded)));
    let mut decoder = cobs::Decoder::<FRAME>::new();
    for byte in cobs::encode(black_box(&buffer)) {
        _ = black_box(decoder.push(byte));
    }
    _ = black_box(decoder.dropped());
    if let Ok(session) = Session::<D, FRAME, 2>::new(identity, black_box(1)) {
        call_session(session, received, agent, rng);
    }
}

/// Calls the API of the session.
fn call_session<const F: usize>(
    mut session: Session<D, F, 2>,
    received: &mut [u8],
    agent: &mut Agent<D>,
    rng: &mut Pcg32,
) {
    session.resume_run(black_box(7));
    session.send_heartbeats(black_box(HEARTBEAT_INTERVAL));
    _ = black_box(session.resume(received));
    _ = black_box(session.handle(received, agent, black_box(5)));
    session.submit(&agent.finish(), black_box(5));
    session.link_up(black_box(6));
    _ = black_box(session.poll_at());
    _ = black_box(session.poll(black_box(7), rng));
    _ = black_box((session.run(), session.wants_model(), session.dropped(), session.newest_unacknowledged()));
    _ = black_box(session.unacknowledged().count());
}
