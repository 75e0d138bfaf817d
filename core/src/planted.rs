//! Bugs that can be planted, to see whether the tests find them.
//!
//! Only a build with `--cfg fedbandit_planted` has them, and of these only a process whose environment names one in
//! `FEDBANDIT_PLANTED`. In any other build [`is`] is a constant, and nothing of a bug is left.

/// A bug. Each stands in the one place that asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table of bugs describes them")]
pub enum Bug {
    AckBeforeCommit,
    SkipFsync,
    NoDuplicateCheck,
    NoTagCheck,
    ReleaseBeforeLog,
    RedrawNoise,
    LateFrameInTwoEpisodes,
    OffByOneInTheTree,
    ForgottenSymmetrisation,
    UncheckedLength,
    UnboundedQueue,
    WrongAgentsKey,
    RepeatedNonces,
    ErrorIgnored,
}

impl Bug {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::AckBeforeCommit,
        Self::SkipFsync,
        Self::NoDuplicateCheck,
        Self::NoTagCheck,
        Self::ReleaseBeforeLog,
        Self::RedrawNoise,
        Self::LateFrameInTwoEpisodes,
        Self::OffByOneInTheTree,
        Self::ForgottenSymmetrisation,
        Self::UncheckedLength,
        Self::UnboundedQueue,
        Self::WrongAgentsKey,
        Self::RepeatedNonces,
        Self::ErrorIgnored,
    ];
}

/// Whether a bug is planted in this process.
#[cfg(not(fedbandit_planted))]
#[inline(always)]
pub const fn is(_: Bug) -> bool {
    false
}

/// Whether a bug is planted in this process: its name, as in [`Bug`], is in the environment.
#[cfg(fedbandit_planted)]
pub fn is(bug: Bug) -> bool {
    static PLANTED: std::sync::OnceLock<Option<Bug>> = std::sync::OnceLock::new();
    let named = || {
        let name = std::env::var("FEDBANDIT_PLANTED").ok()?;
        Bug::ALL.into_iter().find(|bug| std::format!("{bug:?}") == name)
    };
    *PLANTED.get_or_init(named) == Some(bug)
}
