//! One connection: its bytes, its time, and the account that its work is on.
//!
//! | module | its one job |
//! |---|---|
//! | `der` | until when a certificate is valid; elements of DER |
//! | `held` | what connections and streams hold in memory |
//! | `processor` | on which processor a thread runs, and before which others |

pub(crate) mod der;
pub(crate) mod held;
pub(crate) mod processor;
