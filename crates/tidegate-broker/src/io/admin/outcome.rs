//! What shards answer, as errors of the API.

use axum::http::StatusCode;
use tidegate_runtime::http::Problem;

use crate::machine::admin::AdminReply;

/// 503: no shard answers any more.
pub(super) fn exiting() -> Problem {
    let detail = "the broker takes no more requests; ask again when it has started";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "exiting", "The broker is shutting down", detail)
}

/// What a shard's answer means; `None` is a shard that is gone, and `what` is what was asked for.
pub(super) fn outcome(reply: Option<AdminReply>, what: &str) -> Result<(), Problem> {
    match reply {
        Some(AdminReply::Done) => Ok(()),
        Some(AdminReply::TopicNotFound | AdminReply::ChannelNotFound) => {
            Err(Problem::not_found(format!("`{what}` does not exist on this broker; /api/v1/snapshot lists what does")))
        }
        Some(AdminReply::Refused(refused)) => {
            Err(Problem::new(StatusCode::CONFLICT, "refused", "The broker refuses", format!("`{what}`: {refused}")))
        }
        _ => Err(exiting()),
    }
}
