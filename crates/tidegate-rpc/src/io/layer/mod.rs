//! Tower layers for any HTTP/1 or HTTP/2 stack: one before the handlers, one behind the callers.
//!
//! | module | its one job |
//! |---|---|
//! | [`headers`] | asks and grants as header values |
//! | `answer` | refusals that callers without the layer understand too |
//! | `body` | bodies that end a call with their last byte |
//! | `caller` | the client's machine behind its lock |
//! | `client` | the layer behind the callers |
//! | `client_body`, `client_config` | its bodies and what a user may choose of it |
//! | `client_demand` | a demand that is told without a call |
//! | `clocked` | sleeping |
//! | `config` | what a user may choose |
//! | `counts` | what was done so far |
//! | `gate` | the server's machine behind its lock |
//! | `line` | admitted calls that no core has started |
//! | `running` | a call that is told to the machine once |
//! | `server` | the layer before the handlers |
//! | `sessions` | the bounded table of clients |
//! | `stamp` | when a request's bytes were read |

mod answer;
mod body;
mod caller;
mod client;
mod client_body;
mod client_config;
mod client_demand;
mod clocked;
mod config;
mod counts;
#[cfg(test)]
mod fixture;
mod gate;
pub mod headers;
mod line;
mod running;
mod server;
mod sessions;
mod stamp;
#[cfg(test)]
mod tests;

pub use body::CallBody;
pub use client::{ClientFuture, ClientLayer, ClientService};
pub use client_body::AnswerBody;
pub use client_config::{CallBudget, CallPriority, ClientConfig};
pub use config::{Mode, Seen, ServerConfig, Until, is_health_check};
pub use counts::{ClientSnapshot, GrantSnapshot, ServerSnapshot, SessionSnapshot, ShedCount};
pub use server::{ServerFuture, ServerLayer, ServerService};
pub use stamp::{Arrived, ConnectionInfo, Stamped};
