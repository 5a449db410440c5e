//! Tidegate's own API of a broker: its state, its limits, its health.
//!
//! | path | what |
//! |---|---|
//! | `GET /api/v1/snapshot[?clients=true][&topic=..][&channel=..]` | everything about the broker now |
//! | `GET /api/v1/limits`, `GET /api/v1/limits/history` | limits in force; the latest changes |
//! | `PUT`, `DELETE /api/v1/limits/{topic}[/{channel}]` | sets or removes a limit, live |
//! | `POST /api/v1/limits/undo`, `POST /api/v1/limits/redo` | takes the newest change back; makes it again |
//! | `POST /api/v1/topics/{topic}[/channels/{channel}]/{pause,unpause,empty}` | acts on a topic or channel |
//! | `PUT`, `GET /api/v1/parts`, `DELETE /api/v1/parts/{topic}?revision=..` | the node's parts of topics' limits |
//! | `GET /api/v1/lending` | what the node's parts lend to those of other nodes, and borrow |
//! | `POST`, `GET /api/v1/topics/{topic}/prepare` | whether the topic can take publishers here |
//! | `POST /api/v1/publishers/{topic}/disconnect` | lets publishers go |
//! | `POST /api/v1/drain`, `GET /api/v1/node` | refuses new publishers; what node this is |
//! | `POST /api/v1/record/{topic}[?seconds=60]`, `DELETE`, `GET` | writes `TOPIC.trace` into the data folder; ends it; reads it |
//! | `DELETE /api/v1/topics/{topic}[/channels/{channel}]` | deletes it |
//! | `GET /api/v1/publishers/{topic}[?seconds=10][&slo_us=..]` | who publishes, seconds, delays |
//! | `GET /healthz`, `GET /readyz`, `GET /metrics` | for supervisors and Prometheus |
//!
//! Writes need the token. Errors are `application/problem+json`.

mod actions;
mod contract;
mod exposition;
mod lending;
mod limit_routes;
mod limits;
mod metrics;
mod outcome;
mod part_routes;
mod publishers;
mod reach;
mod state;
mod steering;
mod store;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post};
use tidegate_runtime::access::Guard;
use tidegate_runtime::http::{Problem, guard};
use tokio::sync::watch;

pub use self::contract::in_words;
pub use self::limits::{FileChange, InForce, LimitError, Limits, Target};
pub use self::reach::reach_of;
pub use self::store::{
    Action, Cause, Change, Edit, HISTORY, KEPT_CHANGES, LimitFeed, LimitStore, LimitStoreError, LimitStorePending,
    Plan, Transient,
};
pub use tidegate_runtime::access::{Reach, Token};

use super::handle::BrokerHandle;
use super::http::{Live, Node};
use crate::config::Config;

/// Largest body of a request, but of those that list parts or publishers. A limit takes a hundred bytes.
const MOST_BODY_BYTES: usize = 16 << 10;

/// What the broker is doing as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// It is not ready yet.
    Starting,
    /// It serves.
    Serving,
    /// It is shutting down and should get no more connections.
    Draining,
}

/// Who may use the API, and from where.
#[derive(Clone, Debug)]
pub struct Access {
    /// What writers must show; without one, nobody writes.
    pub token: Option<Token>,
    /// Where the API listens.
    pub reach: Reach,
}

/// What the API stands on.
#[derive(Clone)]
pub struct AdminState {
    /// The shards.
    pub broker: BrokerHandle,
    /// The limits in force.
    pub limits: Limits,
    /// What the broker runs with.
    pub config: Arc<Config>,
    /// Who the broker is.
    pub node: Arc<Node>,
    /// What has changed since the start.
    pub live: Live,
    /// What it is doing.
    pub phase: watch::Receiver<Phase>,
}

#[derive(Clone)]
struct Shared {
    admin: AdminState,
    /// Series of `/metrics` that were joined under `other`, over all pages.
    series_dropped: Arc<AtomicU64>,
}

/// The API.
pub fn router(state: AdminState, access: Access) -> Router {
    let asked = Arc::new(Guard { token: access.token, reach: access.reach });
    Router::new()
        .route("/api/v1/snapshot", get(state::snapshot))
        .route("/api/v1/limits", get(limit_routes::all))
        .route(
            "/api/v1/limits/{topic}",
            get(limit_routes::one_or_history)
                .put(limit_routes::set_topic)
                .delete(limit_routes::remove_topic)
                .post(limit_routes::undo_or_redo),
        )
        .route(
            "/api/v1/limits/{topic}/{channel}",
            get(limit_routes::one_of_channel).put(limit_routes::set_channel).delete(limit_routes::remove_channel),
        )
        .route("/api/v1/publishers/{topic}", get(publishers::list))
        .merge(part_routes::routes())
        .route("/api/v1/lending", get(lending::all))
        .merge(steering::routes())
        .route("/api/v1/record/{topic}", post(actions::record).delete(actions::stop_recording).get(actions::trace))
        .route("/api/v1/topics/{topic}", delete(actions::delete_topic))
        .route("/api/v1/topics/{topic}/{action}", post(actions::act_on_topic))
        .route("/api/v1/topics/{topic}/channels/{channel}", delete(actions::delete_channel))
        .route("/api/v1/topics/{topic}/channels/{channel}/{action}", post(actions::act_on_channel))
        .route("/healthz", get(state::health))
        .route("/readyz", get(state::ready))
        .route("/metrics", get(state::metrics))
        .fallback(|| async { Problem::not_found("this path leads nowhere; see the book's page on the admin API") })
        .method_not_allowed_fallback(|| async {
            let detail = "the path exists, but not for this method; see the book's page on the admin API";
            Problem::method_not_allowed(detail)
        })
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
        .layer(from_fn_with_state(asked, guard))
        .with_state(Shared { admin: state, series_dropped: Arc::default() })
}
