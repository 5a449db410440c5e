//! Calls of one kind, and the four classes of priorities that they are told apart by.

use serde::Serialize;

use crate::machine::Priority;

/// Calls of one kind, by what became of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Calls {
    /// That arrived.
    pub offered: u64,
    /// Whose handlers were started.
    pub admitted: u64,
    /// Whose handlers ran to the end.
    pub served: u64,
    /// Those of them that ended within the time that their caller had left; all that named none.
    pub in_time: u64,
    /// That were refused.
    pub shed: u64,
}

impl Calls {
    /// Counts the other ones too.
    pub fn add(&mut self, other: Self) {
        let Self { offered, admitted, served, in_time, shed } = other;
        self.offered += offered;
        self.admitted += admitted;
        self.served += served;
        self.in_time += in_time;
        self.shed += shed;
    }

    /// Their fates, each with its word in metrics.
    pub(super) const fn fates(self) -> [(&'static str, u64); 5] {
        let Self { offered, admitted, served, in_time, shed } = self;
        [("offered", offered), ("admitted", admitted), ("served", served), ("in_time", in_time), ("shed", shed)]
    }
}

/// A quarter of the priorities.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// 0 to 63; 0 is [`Priority::CRITICAL`].
    Critical,
    /// 64 to 127.
    High,
    /// 128 to 191; 128 is [`Priority::DEFAULT`].
    Normal,
    /// 192 to 255, which is [`Priority::BATCH`].
    Batch,
}

impl Class {
    /// All of them, what matters most first.
    pub const ALL: [Self; 4] = [Self::Critical, Self::High, Self::Normal, Self::Batch];

    /// That of a priority.
    #[must_use]
    pub const fn of(priority: Priority) -> Self {
        match priority.0 {
            0..64 => Self::Critical,
            64..128 => Self::High,
            128..192 => Self::Normal,
            192.. => Self::Batch,
        }
    }

    /// Its word in metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::High => "high",
            Self::Normal => "normal",
            Self::Batch => "batch",
        }
    }
}
