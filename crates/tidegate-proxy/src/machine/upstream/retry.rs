//! Which failures may be tried again at all.

/// How a try ended without an answer, or with one that does not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Nothing was sent: no connection, or one that had been closed while idle.
    Unsent,
    /// Some of the request was sent and no answer came; the server may have acted on it.
    Lost,
    /// The server did not answer in time; it may still be at work, and a second one would be set to the same.
    TimedOut,
    /// The server answered so.
    Status {
        /// With this status.
        status: u16,
        /// And said when to come again (`Retry-After`): not before, and not to another server that is likely as busy.
        says_when: bool,
    },
}

/// Whether the request can be sent a second time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replay {
    /// It is whole: it has no body, or none of it was read yet.
    Whole,
    /// Some of its body is gone.
    Spent,
}

/// Whether sending twice does what sending once does, by the method's definition.
///
/// Source: RFC 9110, section 9.2.2. Methods are case-sensitive, and an unknown one is not idempotent.
#[must_use]
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE" | "PUT" | "DELETE")
}

/// Whether a request that met `failure` may be sent again, to another server if there is one.
///
/// What was not sent always may, if it is whole. What was may only if its method is idempotent (RFC 9110, section 9.2.2,
/// on automatic retries). A time-out never: it says that servers are slow, and a retry makes them slower. A status only if
/// the operator named it, and its server did not say when to come again.
#[must_use]
pub fn may_retry(method: &str, failure: Failure, replay: Replay, statuses: &[u16]) -> bool {
    if replay == Replay::Spent {
        return false;
    }
    match failure {
        Failure::Unsent => true,
        Failure::Lost => is_idempotent(method),
        Failure::TimedOut => false,
        Failure::Status { status, says_when } => !says_when && is_idempotent(method) && statuses.contains(&status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_sent_may_always_be_tried_again() {
        assert!(may_retry("POST", Failure::Unsent, Replay::Whole, &[]));
        assert!(!may_retry("POST", Failure::Unsent, Replay::Spent, &[]), "half a body is no request");
    }

    #[test]
    fn what_was_sent_is_sent_again_only_if_that_changes_nothing() {
        for method in ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"] {
            assert!(may_retry(method, Failure::Lost, Replay::Whole, &[]), "{method}");
        }
        for method in ["POST", "PATCH", "CONNECT", "get", "BREW"] {
            assert!(!may_retry(method, Failure::Lost, Replay::Whole, &[]), "{method}");
        }
    }

    #[test]
    fn a_slow_server_gets_no_second_copy() {
        assert!(!may_retry("GET", Failure::TimedOut, Replay::Whole, &[504]));
    }

    #[test]
    fn a_status_is_tried_again_only_where_the_operator_says_so() {
        let busy = Failure::Status { status: 503, says_when: false };
        assert!(!may_retry("GET", busy, Replay::Whole, &[]));
        assert!(may_retry("GET", busy, Replay::Whole, &[502, 503]));
        assert!(!may_retry("POST", busy, Replay::Whole, &[503]) && !may_retry("GET", busy, Replay::Spent, &[503]));
        let later = Failure::Status { status: 503, says_when: true };
        assert!(!may_retry("GET", later, Replay::Whole, &[503]));
    }
}
