//! What a script did, and how the target answered it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::frame::error_name;

/// Counts of a whole run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tally {
    /// What the script does over and over; [`Script::unit`](super::Script::unit) says what it is.
    pub attempts: u64,
    /// Connections that were opened, TLS handshake included where there is one.
    pub connections: u64,
    /// Connections that the target did not accept, or ended before their TLS handshake was done.
    pub refused_connections: u64,
    /// Connections that the target closed afterwards.
    pub closed_by_target: u64,
    /// Connections that were open at once, at most.
    pub open_max: u64,
    /// Answers by status.
    pub statuses: BTreeMap<u16, u64>,
    /// GOAWAY frames by the name of their error.
    pub goaways: BTreeMap<String, u64>,
    /// `RST_STREAM` frames by the name of their error.
    pub resets: BTreeMap<String, u64>,
    /// TLS handshakes that the target took up, and those that it ended by an alert.
    pub handshakes: Handshakes,
    /// Why this machine could not do more, and how often.
    pub missing_here: BTreeMap<String, u64>,
    /// Bytes written to the target, without those of TLS.
    pub bytes_sent: u64,
    #[serde(skip)]
    open: u64,
}

/// Answers to hellos.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Handshakes {
    /// A `ServerHello` came: the target has computed for us.
    pub taken_up: u64,
    /// An alert came.
    pub alerts: u64,
    /// Something else came, such as an answer in HTTP.
    pub other: u64,
    /// The connection was closed without a word.
    pub closed: u64,
    /// Nothing came for as long as we waited.
    pub silent: u64,
}

impl Tally {
    pub(super) fn opened(&mut self) {
        self.connections += 1;
        self.open += 1;
        self.open_max = self.open_max.max(self.open);
    }

    pub(super) fn ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    pub(super) fn status(&mut self, status: u16) {
        *self.statuses.entry(status).or_default() += 1;
    }

    pub(super) fn goaway(&mut self, code: u32) {
        *self.goaways.entry(error_name(code).to_owned()).or_default() += 1;
    }

    pub(super) fn reset(&mut self, code: u32) {
        *self.resets.entry(error_name(code).to_owned()).or_default() += 1;
    }

    pub(super) fn missing(&mut self, error: &std::io::Error) {
        // A kind has a name of its own; the text of an error names no address, so these stay few.
        *self.missing_here.entry(error.to_string()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_that_were_open_at_once_is_kept() {
        let mut tally = Tally::default();
        tally.opened();
        tally.opened();
        tally.ended();
        tally.opened();
        assert_eq!((tally.connections, tally.open_max), (3, 2));
    }

    #[test]
    fn errors_go_by_their_names() {
        let mut tally = Tally::default();
        tally.goaway(0xb);
        tally.goaway(0xb);
        tally.reset(77);
        assert_eq!(tally.goaways["ENHANCE_YOUR_CALM"], 2);
        assert_eq!(tally.resets["unknown"], 1);
    }
}
