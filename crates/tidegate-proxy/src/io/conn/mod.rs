//! One connection: its bytes, its time, and the account that its work is on.
//!
//! | module | its one job |
//! |---|---|
//! | `der` | until when a certificate is valid; elements of DER |
//! | `processor` | on which processor a thread runs, and before which others |

pub(crate) mod der;
pub(crate) mod processor;
