//! Sequences of operations on the controller, compared with a naive implementation of Algorithm 1.

#[path = "../../../host/tests/controller/naive.rs"]
#[expect(dead_code, reason = "shared with the tests of host")]
mod naive;
#[path = "../../../host/tests/shared/random.rs"]
mod random;
#[path = "../../../host/tests/shared/uniform.rs"]
mod uniform;

use std::num::NonZeroU32;

use fedbandit::aggregate::Mean;
use fedbandit::algorithm::Controller;
use fedbandit::algorithm::Level;
use fedbandit::algorithm::PaperRule;
use fedbandit::algorithm::{AgentId, NoPrivacy};
use fedbandit::algorithm::{ControllerConfig, Episodes};
use fedbandit::math::symmetric;
use naive::{KINDS, Message, Naive, beta, is_mean, lambda};
use nalgebra::{DMatrix, DVector};
use random::Random;

/// Controller operations: two bytes of setup, then three bytes per message or end of an episode.
pub(super) fn operations(data: &[u8]) {
    let [setup, seed, operations @ ..] = data else { return };
    let dimension = 2 + setup % 3;
    let d = usize::from(dimension);
    let setting = ControllerConfig {
        dimension,
        episodes: Episodes::new(64, 2, 8).expect("valid schedule"),
        level: if setup & 8 == 0 { Level::Paper } else { Level::Strict },
        reward_bound: [None, Some(1.0), Some(3.0)][usize::from(setup >> 4) % 3],
        window: u32::from(setup >> 6),
        half_life: NonZeroU32::new(5).filter(|_| seed & 1 == 1),
    };
    let agents: Vec<AgentId> = (0..5).map(|agent| AgentId(10 * agent + 7)).collect();
    let rule = PaperRule::new(Mean, Mean, |episode: u32| (lambda(episode), beta(episode)));
    let mut controller = Controller::new(setting, agents.clone(), rule, NoPrivacy::new).expect("valid setting");
    let mut naive = Naive::new(setting, agents.len());
    let mut random = Random::new((*seed).into());
    for operation in operations.as_chunks::<3>().0 {
        let [who, what, when] = *operation;
        if who < 32 {
            assert_eq!(controller.counts().faults, naive.faults);
            assert_eq!(controller.missing(), naive.missing());
            controller.close_episode().expect("mean of at least one stream");
            naive.k += 1;
            let Some(model) = controller.model() else { return };
            let estimate = controller.estimate();
            let gram = symmetric::matrix(&estimate.gram.point, d);
            let b = DVector::from_column_slice(&estimate.feature_sum.point);
            let flat = |matrix: &DMatrix<f64>| DVector::from_column_slice(matrix.as_slice());
            let (grams, sums): (Vec<_>, Vec<_>) =
                naive.sums().iter().map(|(gram, sum)| (flat(gram), sum.clone())).unzip();
            assert!(is_mean(&grams, &flat(&gram)) && is_mean(&sums, &b), "aggregate differs from the mean");
            let (_, theta) = naive.solve(gram, &b);
            let own = DVector::from_iterator(d, model.theta.iter().map(f64::from));
            assert!((own - &theta).amax() <= 1e-6 * theta.amax().max(1e-3), "θ differs from the solution");
            assert_eq!((model.episode, model.beta), (naive.k, beta(naive.k) as f32));
            continue;
        }
        let agent = Some(usize::from(who) % (agents.len() + 1)).filter(|agent| *agent < agents.len());
        let episode = (naive.k + u32::from(when % 3)).saturating_sub(u32::from(when / 3 % 6));
        let kind = KINDS[usize::from(what) % KINDS.len()];
        let message = Message::new(kind, d, setting.episodes.length(episode), &mut random);
        let id = agent.map_or(AgentId(1), |agent| agents[agent]);
        let feature_sum = message.feature_sum.as_slice();
        let outcome = controller.receive_matrix(id, episode, message.gram.transpose().as_slice(), feature_sum);
        assert_eq!(outcome, naive.receive(agent, episode, &message), "{kind:?} of episode {episode}");
    }
}
