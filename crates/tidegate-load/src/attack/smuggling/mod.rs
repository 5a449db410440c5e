//! Requests that two servers may read differently: a corpus, and what a proxy makes of it in front of an upstream.
//!
//! A proxy that ends a request elsewhere than its upstream does lets an attacker put a request of his own before another
//! tenant's. [`differential`] sends every case of the corpus through a proxy to a [`Recorder`], which keeps the bytes that
//! arrive. A case is a *desync* if the upstream saw another number of requests than the client got answers of it, or if
//! the next client's request came back changed.
//!
//! | module | its one job |
//! |---|---|
//! | `corpus` | the cases of `vectors/http1/` |
//! | `reading` | bytes as requests: as a strict upstream reads them, and as a lenient one |
//! | `recorder` | an upstream that remembers |
//! | `client` | sends a case, reads the answers |
//! | `verdict` | puts both sides together |

mod client;
mod corpus;
mod reading;
mod recorder;
mod verdict;

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::context::Context;
use super::dial::Speaks;

pub use corpus::corpus;
pub use recorder::{Connection, Recorder};
pub use tidegate_wire::http1::vectors::{Case, Verdict};
pub use verdict::{CaseReport, Conduct, DifferentialReport, differential};

/// What is not answered by then waits for more of the request.
const ANSWER_LIMIT: Duration = Duration::from_millis(200);

/// One case after the other, as a nuisance: only the first status is looked at.
pub(super) async fn attack(context: &Context, number: usize) {
    let count = context.corpus.len();
    let at = usize::try_from(context.rng().below(count as u64)).expect("below a length");
    let case = &context.corpus[(at + number) % count];
    let Some((mut link, _open)) = context.open(Speaks::Http1, None).await else { return };
    let sent = timeout(ANSWER_LIMIT, link.write_all(&case.bytes)).await.is_ok_and(|sent| sent.is_ok());
    let mut answer = [0; 512];
    let heard = timeout(ANSWER_LIMIT, link.read(&mut answer)).await;
    context.note(|tally| {
        tally.attempts += 1;
        tally.bytes_sent += if sent { case.bytes.len() as u64 } else { 0 };
        match heard {
            Ok(Ok(length)) if length > 0 => {
                if let Some(answer) = client::answers(&answer[..length]).first() {
                    tally.status(answer.status);
                }
            }
            Ok(_) => tally.closed_by_target += 1,
            Err(_) => {}
        }
    });
}
