//! One connection: its bytes, its time, and the account that its work is on.
//!
//! | module | its one job |
//! |---|---|
//! | `der` | until when a certificate is valid; elements of DER |

pub(crate) mod der;
