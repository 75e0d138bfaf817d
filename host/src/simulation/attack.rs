//! Attacks by name.

use crate::names::named;

/// Behaviour of corrupted agents, by name.
///
/// Attackers know everything: θ*, all honest messages and sums, the admission checks and the rule. Their messages pass through
/// the same admission as all others.
///
/// (U, u) is the summary of an agent's own steps, and (Ū, ū) the mean of the honest summaries of the episode. s is the
/// deviation of the honest u by coordinate, and w = θ*/‖θ*‖. q is the unit vector that honest agents have explored least, with
/// ⟨q, θ*⟩ ≥ 0.
///
/// With bounded rewards, u is scaled down until it is consistent with its U, since admission would count it as zero otherwise.
/// The exceptions are `huge`, `non-finite`, `asymmetric` and `non-psd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attack {
    /// (U, u): honest behaviour.
    None,
    /// (U, −u).
    SignFlip,
    /// Rewards of −θ* at each step with probability 1/2 (Proposition 1). The other steps are not attacked.
    FakeParameter,
    /// (0, 0).
    Zero,
    /// (Ū, −10⁶·L·w).
    Huge,
    /// NaN and ∞.
    NonFinite,
    /// U with L added above the diagonal only, and −u.
    Asymmetric,
    /// (−Ū, ū): symmetric and within the paper's checks, but not a Gram matrix.
    NonPsd,
    /// (Ū, −10·L·w), the same from all.
    Collude,
    /// (Ū, ū − z·s·sign ū), with z = Φ⁻¹((n − f − m)/(n − f)) and m = ⌊n/2⌋ + 1 − f (Baruch et al. 2019).
    ALittleIsEnough,
    /// (Ū, −2ū) (Xie et al. 2020).
    InnerProduct,
    /// (Ū, ū − γ·s) with the largest γ that keeps the distance from each honest message within the largest distance between two
    /// honest ones (Shejwalkar and Houmansadr 2021).
    MinMax,
    /// The message of one honest agent, from all.
    Mimic,
    /// (L·qqᵀ, −L·qqᵀθ*): false certainty about an unexplored direction.
    GramInflate,
    /// (Ū/100, −ū): rewards of almost no actions.
    GramDeflate,
    /// (Ū, ū − L·q).
    WeakDirection,
    /// The message of the first episode, both as a stale frame and as that of this episode.
    Replay,
    /// Honest for the first half of the episodes, then `adaptive`.
    Sleeper,
    /// `collude` in half of the episodes, drawn for each agent and episode. The other episodes are not attacked.
    Intermittent,
    /// No message.
    Silent,
    /// The one of about thirty messages after which the rule's next model has the most regret.
    Adaptive,
    /// The messages of `adaptive`, and about sixty placements of the colluders' sums that vary in direction, distance, share of U
    /// in one direction, and noise. Chooses the one after which the rule's next model has the most regret or comes closest to more.
    Optimal,
    /// Honest for the first half of the episodes, then `optimal`.
    OptimalSleeper,
    /// (L·qqᵀ, u) or (0, u), from all: information about one direction or none. Chooses q and u among some fifty candidates, each with
    /// an error of θ that passes for noise, by the rule's next model as `optimal` does.
    Claim,
    /// No agent is corrupted. The controller is, and forges a model for each device ([`Forgery`](super::Forgery)).
    HostileController,
}

named!(
    Attack,
    "attack",
    None = "none",
    SignFlip = "sign-flip",
    FakeParameter = "fake-parameter",
    Zero = "zero",
    Huge = "huge",
    NonFinite = "non-finite",
    Asymmetric = "asymmetric",
    NonPsd = "non-psd",
    Collude = "collude",
    ALittleIsEnough = "a-little-is-enough",
    InnerProduct = "inner-product",
    MinMax = "min-max",
    Mimic = "mimic",
    GramInflate = "gram-inflate",
    GramDeflate = "gram-deflate",
    WeakDirection = "weak-direction",
    Replay = "replay",
    Sleeper = "sleeper",
    Intermittent = "intermittent",
    Silent = "silent",
    Adaptive = "adaptive",
    Optimal = "optimal",
    OptimalSleeper = "optimal-sleeper",
    Claim = "claim",
    HostileController = "hostile-controller",
);

impl Attack {
    /// Returns true if agents attack, and false if the controller does.
    pub fn is_by_agents(self) -> bool {
        self != Self::HostileController
    }

    /// Returns true if attackers try messages on the rule.
    pub(super) fn is_search(self) -> bool {
        matches!(self, Self::Adaptive | Self::Sleeper | Self::Claim) || self.is_optimal()
    }

    pub(super) fn is_optimal(self) -> bool {
        matches!(self, Self::Optimal | Self::OptimalSleeper)
    }
}
