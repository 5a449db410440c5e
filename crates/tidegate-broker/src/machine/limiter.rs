//! The contract of a topic or channel.

use tidegate_core::limit::Limit;

/// What one token buys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unit {
    /// One message.
    #[default]
    Messages,
    /// One byte of message body.
    Bytes,
}

/// What happens to a message that finds no token.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Discipline {
    /// It is accepted and waits in order for its token; the line is bounded and pushes back on the publisher's socket.
    #[default]
    Wait,
    /// It is refused at once, with the time after which a retry succeeds.
    Refuse,
}

/// Whether the contract acts or only counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// It acts.
    #[default]
    Enforce,
    /// It lets everything pass and counts what it would have delayed or refused.
    Shadow,
}

/// The contract of a topic (on what is published) or of a channel (on what is delivered).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Contract {
    /// Rate and burst, in `unit`s.
    pub limit: Limit,
    /// What one token buys.
    pub unit: Unit,
    /// What happens without a token. Channels always wait.
    pub discipline: Discipline,
    /// Whether it acts.
    pub mode: Mode,
}

/// Where a contract came from; a change over HTTP outranks the file until it is removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// `tidegate.toml`.
    File,
    /// The admin API or the console.
    Admin,
}
