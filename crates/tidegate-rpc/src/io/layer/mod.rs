//! Tower layers for any HTTP/1 or HTTP/2 stack: one before the handlers, one behind the callers.
//!
//! ```
//! use std::convert::Infallible;
//!
//! use http::{Request, Response};
//! use http_body_util::Empty;
//! use tidegate_core::Rng;
//! use tidegate_rpc::io::layer::{ClientConfig, ClientLayer, RequestBody, ServerLayer};
//! use tidegate_rpc::machine::Tenant;
//! use tidegate_rpc::machine::credits::CreditClient;
//! use tower::{Layer, Service, service_fn};
//!
//! # tokio_test(async {
//! // With tonic: `Server::builder().layer(server.clone())`; with axum: `router.layer(server.clone())`.
//! let server = ServerLayer::default();
//! let handler = service_fn(|_: Request<RequestBody<Empty<&'static [u8]>>>| async {
//!     Ok::<_, Infallible>(Response::new(Empty::<&'static [u8]>::new()))
//! });
//!
//! // Around a tonic channel or any other HTTP client; here, straight around the server.
//! let client = ClientLayer::new(CreditClient::new(Tenant(0), &mut Rng::new(7)), ClientConfig::default());
//! let mut caller = client.layer(server.layer(handler));
//!
//! let answer = caller.call(Request::new(Empty::new())).await.unwrap();
//! assert!(answer.headers().contains_key("tidegate-grant"));
//! assert_eq!(server.snapshot(10).served, 1);
//! # });
//! # fn tokio_test(test: impl Future<Output = ()>) {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
//! # }
//! ```
//!
//! The layers carry any scheme of [`crate::machine`]. A handler runs as it would without them, only later: calls start one
//! by one, in the order of their arrival, so that the executor's run queue stays short ([`crate::machine::desk`]). They
//! work on any tokio runtime; that of [`crate::io::signal::runtime`] looks at its sockets more often. Wrap listeners by
//! [`stamped`]: the arrival of a request is then the moment at which its bytes were read, and callers without the layer
//! are told apart.
//!
//! A handler takes a core while it is polled. What it waits for in between, be it a database, a lock or a thread that
//! blocks, is in flight, and the machine learns how many calls may be (`InFlightLimit` of the core): the others wait in the
//! line.
//!
//! One client layer before several servers, behind a balancer, keeps apart what they grant, by the number that each gives
//! itself ([`Instances`](crate::machine::instances::Instances)). [`Replicas`] balances by itself, to who has room.
//!
//! | module | its one job |
//! |---|---|
//! | [`headers`] | asks and grants as header values |
//! | `alarm` | runs timers while no call comes or ends |
//! | `answer` | refusals that callers without the layer understand too |
//! | `body` | bodies that end a call with their last byte |
//! | `caller` | the client's machine behind its lock |
//! | `client` | the layer behind the callers |
//! | `client_body`, `client_config` | its bodies and what a user may choose of it |
//! | `client_demand` | a demand that is told without a call |
//! | `clocked` | sleeping |
//! | `config` | what a user may choose |
//! | `counts` | what was done so far |
//! | `current` | what a call hands down to the calls that its handler makes |
//! | `gate` | the server's machine behind its lock |
//! | `listen` | listeners whose connections are stamped |
//! | `lock` | a lock for short work |
//! | `methods` | the methods that calls are told apart by |
//! | `repeat_body` | bodies that can be sent again |
//! | `replicas` | several servers behind one service |
//! | `request_body` | whether a handler waits for its client |
//! | `retry` | the layer that sends a refused call again |
//! | `running` | a call that is told to the machine once |
//! | `server` | the layer before the handlers |
//! | `sessions` | the bounded table of clients |
//! | `shown` | what telemetry is told |
//! | `stamp` | when a request's bytes were read |

mod alarm;
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
mod current;
#[cfg(test)]
mod fixture;
mod gate;
pub mod headers;
mod listen;
mod lock;
mod methods;
mod repeat_body;
mod replicas;
mod request_body;
mod retry;
mod running;
mod server;
mod sessions;
mod shown;
mod stamp;
#[cfg(test)]
mod tests;

pub use crate::machine::Claims;
pub use body::CallBody;
pub use client::{ClientFuture, ClientLayer, ClientService};
pub use client_body::AnswerBody;
pub use client_config::{CallBudget, CallPriority, ClientConfig, RetryConfig};
pub use config::{Mode, Seen, ServerConfig, Until, is_health_check};
pub use counts::{ClientSnapshot, GrantSnapshot, ServerSnapshot, SessionSnapshot, ShedCount};
pub use current::{CallContext, Inherit, detached, inherit};
pub use listen::{Accepted, Listen, StampedListener, stamped};
pub use lock::BriefLock;
pub use repeat_body::{Cloned, Keep, Recorded, RepeatBody};
pub use replicas::{Replicas, ReplicasFuture};
pub use request_body::RequestBody;
pub use retry::{RetryFuture, RetryLayer, RetryService};
pub use server::{ServerFuture, ServerLayer, ServerService};
pub use stamp::{Arrived, ConnectionId, ConnectionInfo, Stamped};
