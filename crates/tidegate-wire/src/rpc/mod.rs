//! `tidegate-rpc`: a lean binary protocol for short calls over one ordered byte stream.
//!
//! Numbers are little-endian. Every frame begins with eight bytes: the payload's length (u32), the kind (u8) and three
//! bytes that the kind explains; then the rest of a header whose size the kind fixes, then the payload.
//!
//! | kind | from | header | carries |
//! |---|---|---|---|
//! | 1 hello | client | 16 | magic, version, tenant; first and only once |
//! | 2 request | client | 32 | a call, its priority, its budget, the client's demand |
//! | 3 demand | client | 24 | the demand without a call |
//! | 4 cancel | client | 16 | a call whose answer nobody wants any more |
//! | 5 response | server | 40 | how a call ended, with a grant |
//! | 6 grant | server | 24 | a grant without an answer |
//!
//! [`client`] is what clients send, [`server`] what servers answer. Bits that no version has given a meaning are zero;
//! a frame in which one is set is refused, so that what was read is written again byte by byte.

pub mod client;
mod frame;
pub mod server;

pub use frame::{BadFrame, Decoded, HEADER_BYTES_MAX, PAYLOAD_BYTES_MAX, VERSION};
