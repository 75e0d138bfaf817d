//! Calls every public function of `fedbandit-core` on opaque inputs, for dimension `$D`.
//!
//! The panic handler calls an undefined symbol, so the program links only if no panic is reachable. Linking is the test; the
//! program is never run. The feature `reachable-panic` adds a panic, to test that the check can fail.
#![no_std]
#![no_main]

use core::hint::black_box;
use core::panic::PanicInfo;

use cortex_m_rt::entry;
use fedbandit_core::session::Session;
use fedbandit_core::wire::{Channel, Identity, Message, claimed_address, cobs, is_model, max_frame_len};
use fedbandit_core::{Action, Agent, Model, Prior, Rewards, Values, norm_squared_limit, packed_len, project, rounding};
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
    if let Ok(mut agent) =
        Agent::<D>::new(black_box(&Prior { lambda: 1.0, beta: 1.0, episode_len: 8, rewards: Rewards::Unbounded }))
    {
        loop {
            let model: &Model<'_> = black_box(&Model {
                episode: 1,
                episode_len: 8,
                beta: 1.0,
                rewards: Rewards::Clipped,
                theta: Values::Native(&[]),
                design: Values::Wire(&[]),
            });
            _ = black_box(agent.begin(model));
            _ = black_box((model.theta.len(), model.theta.is_empty()));
            let decision_set: &[Action<D>] = black_box(&[]);
            _ = black_box(agent.select(decision_set));
            _ = black_box(agent.select(decision_set.iter().map(project)));
            _ = black_box(agent.select_random_ties(decision_set, &mut rng));
            for action in decision_set {
                _ = black_box(agent.score(action));
                _ = black_box(agent.record(action, black_box(0.5)));
            }
            let summary = agent.finish();
            for value in summary.gram().chain(*summary.feature_sum()) {
                _ = black_box(value);
            }
            _ = black_box((summary.episode(), summary.steps()));
            _ = black_box((agent.episode(), agent.episode_len(), agent.steps(), agent.rewards(), agent.theta()));
            _ = black_box(agent.save(black_box(&mut saved)));
            if let Ok(restored) = Agent::restore(black_box(&saved)) {
                agent = restored;
            }
            call_wire(&mut agent, &mut rng);
            _ = black_box((packed_len(black_box(3)), norm_squared_limit(black_box(3))));
            _ = black_box((rounding::sums(black_box(3), D), rounding::score(black_box(3), 1.0, 1.0, 1.0)));
            if cfg!(feature = "reachable-panic") {
                _ = black_box(decision_set[black_box(1)]);
            }
        }
    }
    loop {}
}

/// Calls the API of plain frames, COBS and the session.
fn call_wire(agent: &mut Agent<D>, rng: &mut Pcg32) {
    const FRAME: usize = max_frame_len(D);
    let Some(identity) = Identity::from_blob(black_box(&[0; 52])) else { return };
    _ = black_box(identity.to_blob());
    let mut buffer = [0; FRAME];
    let received: &[u8] = black_box(&[]);
    _ = black_box(claimed_address(received));
    _ = black_box(is_model(received));
    if let Ok(message) = identity.decode(received) {
        let message: &Message<'_> = black_box(&message);
        _ = black_box(identity.encode(message, black_box(&mut buffer)));
    }
    _ = black_box(identity.encode_summary(&agent.finish(), &mut buffer));
    let mut channel = Channel::plain(identity.clone());
    if let Ok(message) = channel.decode(black_box(&mut [0; FRAME])) {
        _ = black_box(Channel::plain(identity.clone()).encode(&message, black_box(&mut buffer)));
    }
    _ = black_box(channel.encode_summary(&agent.finish(), black_box(&mut buffer)));
    let mut decoder = cobs::Decoder::<FRAME>::new();
    for byte in cobs::encode(black_box(&buffer)) {
        _ = black_box(decoder.push(byte));
    }
    _ = black_box(decoder.dropped());
    #[cfg(feature = "sealed")]
    call_sealed(agent, rng, &identity);
    call_session(Session::<FRAME, 2>::new(identity, black_box(1)), received, agent, rng);
}

fn call_session<const F: usize>(mut session: Session<F, 2>, received: &[u8], agent: &mut Agent<D>, rng: &mut Pcg32) {
    let mut buffer = [0; F];
    _ = black_box(session.handle(received, agent, black_box(5)));
    _ = black_box(session.resume(received));
    session.submit(&agent.finish(), black_box(5));
    _ = black_box(session.poll(agent.episode(), black_box(7), rng, &mut buffer));
    _ = black_box((session.wants_model(), session.lost(), session.newest(), session.unacknowledged().count()));
}

/// Calls the API of sealed frames and the session over them.
#[cfg(feature = "sealed")]
fn call_sealed(agent: &mut Agent<D>, rng: &mut Pcg32, identity: &Identity) {
    use fedbandit_core::wire::max_sealed_frame_len;

    const FRAME: usize = max_sealed_frame_len(D);
    _ = black_box(Identity::from_sealed_blob(black_box(&identity.to_sealed_blob())));
    let mut device = Channel::sealed_device(identity.clone(), black_box(1));
    let mut controller = black_box(Channel::sealed_controller(identity.clone(), black_box(1)));
    let (mut buffer, mut received) = ([0; FRAME], black_box([0; FRAME]));
    if let Ok(message) = device.decode(black_box(&mut received)) {
        _ = black_box(controller.encode(black_box(&message), black_box(&mut buffer)));
    }
    _ = black_box(device.encode_summary(&agent.finish(), black_box(&mut buffer)));
    call_session(Session::<FRAME, 2>::sealed(identity.clone(), black_box(1)), black_box(&[]), agent, rng);
}
