//! Which server gets a request, whether a server is well, and what may be tried again.
//!
//! | module | its one job |
//! |---|---|
//! | [`config`] | the settings of a pool, with their defaults |
//! | [`pool`] | the servers of one upstream: who is asked, who waits, who is refused |
//! | `balance` | round robin, least loaded and by key, by weight |
//! | `ring` | consistent hashing with bounded loads |
//! | [`passive`] | ejects a server whose requests fail |
//! | [`active`] | asks a server how it is, and believes it after some answers |
//! | [`connections`] | which connection of HTTP/2 a request shares |
//! | [`sharing`] | what the upstream can do at once, learnt and shared by tenant |
//! | [`names`] | when a server's name is asked for again, and what has changed since |
//! | [`lookups`] | which names the system is asked for, and what it said of them last |
//! | `slots` | who holds the servers' slots, and who may have one more |
//! | `company` | whether somebody is alone |
//! | `turns` | who waits for a server, and in which order they start |
//! | `retries` | who may take a retry out of the budget |
//! | [`retry`] | which failures may be tried again at all |
//!
//! A pool belongs to one thread. Its requests are named by the caller and its servers by their place in the list.

pub mod active;
mod balance;
mod company;
pub mod config;
pub mod connections;
pub mod lookups;
pub mod names;
pub mod passive;
pub mod pool;
mod retries;
pub mod retry;
mod ring;
pub mod sharing;
mod slots;
mod turns;

pub use active::{ActiveHealth, Change};
pub use config::{ActiveConfig, Balance, PassiveConfig, PoolConfig, RetryConfig, ServerConfig};
pub use connections::{Begun, Connections, ConnectionsTuning};
pub use passive::{Client, Passive};
pub use pool::{Acquire, Output, Pool, Refusal, ServerState, Tried};
pub use retry::{Failure, Replay, is_idempotent, may_retry};
pub use ring::Key;
pub use sharing::{Call, SharingTuning, Stay};
pub use turns::{Asker, Flow};
