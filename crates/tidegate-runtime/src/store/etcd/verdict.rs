//! What an error of etcd says of the request that got it.

use std::error::Error;

use tonic::{Code, ConnectError, Status};

/// What an error says of its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It was not carried out and never will be: another node, or the same one later, may do it.
    NotDone,
    /// Nobody knows.
    Unknown,
    /// It was refused for what it is.
    Refused,
}

/// etcd's words for what it did not begin. Source: its `rpctypes/error.go`, and raft's for a proposal that found no leader.
const NOT_BEGUN: [&str; 5] = [
    "etcdserver: no leader",
    "etcdserver: not leader",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
    "raft proposal dropped",
];

/// Judges `status`.
pub(super) fn judge(status: &Status) -> Verdict {
    if is_of_connecting(status) || NOT_BEGUN.iter().any(|words| status.message().contains(words)) {
        return Verdict::NotDone;
    }
    match status.code() {
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss => Verdict::Refused,
        // Its disk quota is used up; it answers so until somebody made room.
        Code::ResourceExhausted if status.message().starts_with("etcdserver: ") => Verdict::Refused,
        _ => Verdict::Unknown,
    }
}

/// Whether there was no connection to send anything on.
fn is_of_connecting(status: &Status) -> bool {
    let mut causes = std::iter::successors(status.source(), |&cause| cause.source());
    causes.any(<dyn Error>::is::<ConnectError>)
}

/// Whether an answer was larger than this adapter takes.
pub(super) fn is_too_large(status: &Status) -> bool {
    status.code() == Code::OutOfRange && status.message().contains("message length too large")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_begun_is_safe_to_send_again() {
        let verdict = |code, words: &str| judge(&Status::new(code, words));
        assert_eq!(verdict(Code::Unavailable, "etcdserver: no leader"), Verdict::NotDone);
        assert_eq!(verdict(Code::Unknown, "raft proposal dropped"), Verdict::NotDone);
        assert_eq!(verdict(Code::ResourceExhausted, "etcdserver: too many requests"), Verdict::NotDone);
        assert_eq!(verdict(Code::Unavailable, "etcdserver: request timed out"), Verdict::Unknown);
        assert_eq!(verdict(Code::Unavailable, "etcdserver: leader changed"), Verdict::Unknown);
        assert_eq!(verdict(Code::Unknown, "transport error"), Verdict::Unknown);
        assert_eq!(verdict(Code::Cancelled, "h2 protocol error"), Verdict::Unknown);
        assert_eq!(verdict(Code::NotFound, "etcdserver: requested lease not found"), Verdict::Refused);
        assert_eq!(verdict(Code::InvalidArgument, "etcdserver: duplicate key given in txn request"), Verdict::Refused);
        assert_eq!(verdict(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"), Verdict::Refused);
    }

    #[test]
    fn without_a_connection_nothing_was_done() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        assert_eq!((status.code(), judge(&status)), (Code::Unavailable, Verdict::NotDone));
    }
}
