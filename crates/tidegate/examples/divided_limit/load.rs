//! Open-loop load at several proxies, with the instants between which each request was decided.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidegate_core::limit::{Limit, TokenBucket};
use tidegate_core::time::nanos;
use tidegate_core::{Instant, Rng};
use tidegate_runtime::clock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Requests under way at one proxy at a time, each on a connection of its own.
const CONNECTIONS: usize = 32;

/// What is sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Requests per second at all proxies together.
    pub(crate) per_s: f64,
    /// The share of them that comes to the busy proxy.
    pub(crate) busy: f64,
    /// After so long the next proxy is the busy one.
    pub(crate) shift: Duration,
    pub(crate) length: Duration,
    pub(crate) seed: u64,
}

/// A request that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) proxy: usize,
    /// When it was to be sent.
    pub(crate) due: Instant,
    /// Its first byte was not sent before,
    pub(crate) sent: Instant,
    /// and its answer came then or before.
    pub(crate) answered: Instant,
    /// 200, or 429 for a refusal; 0 without an answer.
    pub(crate) status: u16,
}

/// Sends `load` to the proxies at `addresses`, each request at its instant however the others fare.
pub(crate) async fn send(addresses: &[SocketAddr], load: Load) -> Vec<Asked> {
    let mut rng = Rng::new(load.seed);
    let mut schedule: Vec<Vec<Duration>> = vec![Vec::new(); addresses.len()];
    let proxies = addresses.len() as u64;
    let mut at = Duration::ZERO;
    loop {
        at += Duration::from_secs_f64(rng.exponential() / load.per_s);
        if at >= load.length {
            break;
        }
        let busy = u64::try_from(at.as_nanos() / load.shift.as_nanos()).expect("a short run") % proxies;
        let others = rng.below(proxies.max(2) - 1);
        let proxy = if rng.chance(load.busy) { busy } else { (busy + 1 + others) % proxies };
        schedule[usize::try_from(proxy).expect("a few proxies")].push(at);
    }
    let begin = clock::now() + Duration::from_millis(100);
    let mut tasks = Vec::new();
    for ((proxy, &address), dues) in (0..).zip(addresses).zip(schedule) {
        // Connections take the next request that is due, whoever is free.
        let dues = Arc::new(Mutex::new(dues.into_iter()));
        for _ in 0..CONNECTIONS {
            let dues = Arc::clone(&dues);
            tasks.push(tokio::spawn(async move {
                let mut stream = None;
                let mut asked = Vec::new();
                loop {
                    let next = dues.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(due) = next.map(|due| begin + due) else { return asked };
                    tokio::time::sleep(due.since(clock::now())).await;
                    let sent = clock::now();
                    let status = one(&mut stream, address).await.unwrap_or(0);
                    asked.push(Asked { proxy, due, sent, answered: clock::now(), status });
                }
            }));
        }
    }
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.expect("a client does not panic"));
    }
    all.sort_by_key(|asked| (asked.sent, asked.proxy));
    all
}

async fn one(open: &mut Option<TcpStream>, address: SocketAddr) -> std::io::Result<u16> {
    let mut stream = match open.take() {
        Some(stream) => stream,
        None => TcpStream::connect(address).await?,
    };
    stream.write_all(b"GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n").await?;
    let (mut answer, mut bytes) = (Vec::new(), [0; 2_048]);
    loop {
        let read = stream.read(&mut bytes).await?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&bytes[..read]);
        if let Some((status, length, closes)) = head_of(&answer)
            && answer.len() >= length
        {
            if !closes {
                *open = Some(stream);
            }
            return Ok(status);
        }
    }
}

/// Status, length of head and body, and whether the connection ends; `None` before the end of the head.
fn head_of(answer: &[u8]) -> Option<(u16, usize, bool)> {
    let text = str::from_utf8(answer).ok()?;
    let end = text.find("\r\n\r\n")? + 4;
    let head = text[..end].to_ascii_lowercase();
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let body: usize = field("content-length:").and_then(|length| length.parse().ok()).unwrap_or(0);
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, end + body, field("connection:") == Some("close")))
}

/// What the requests of a run say.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdict {
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    /// Refused while an undivided bucket had a token for it.
    pub(crate) refused_with_tokens: u64,
    /// Refused by the undivided bucket.
    pub(crate) refused_undivided: u64,
    /// Without an answer, or with one that is neither 200 nor 429.
    pub(crate) failed: u64,
    /// Windows in which certainly more than burst + rate * t were admitted.
    pub(crate) violations: u64,
    /// The fullest window, in requests above that; below 0 if the law holds.
    pub(crate) excess_max: f64,
    /// The largest share of the requests that one proxy got.
    pub(crate) busiest: f64,
}

/// Judges requests that were answered, in the order in which they were sent; those that were not sent within `counted` only
/// by the law.
pub(crate) fn judge(asked: &[Asked], limit: Limit, counted: Range<Instant>) -> Verdict {
    let mut verdict = Verdict { excess_max: f64::NEG_INFINITY, ..Verdict::default() };
    let Some(first) = asked.first() else { return verdict };
    let mut undivided = TokenBucket::empty(limit, first.sent);
    let mut by_proxy: BTreeMap<usize, u64> = BTreeMap::new();
    for one in asked {
        let had_tokens = undivided.try_take(1, one.sent).is_ok();
        if !counted.contains(&one.sent) {
            continue;
        }
        *by_proxy.entry(one.proxy).or_default() += 1;
        verdict.requests += 1;
        match one.status {
            200 => verdict.admitted += 1,
            429 => verdict.refused_with_tokens += u64::from(had_tokens),
            _ => verdict.failed += 1,
        }
        verdict.refused_undivided += u64::from(!had_tokens);
    }
    let busiest = by_proxy.values().copied().max().unwrap_or(0);
    verdict.busiest = tidegate_core::number::float(busiest) / tidegate_core::number::float(verdict.requests.max(1));
    law(asked, limit, &mut verdict);
    verdict
}

/// A request was admitted between its first byte and its answer: what was sent after `A` and answered before `B` was
/// admitted in that window, for certain. All windows that begin and end with a request; O(n^2).
fn law(asked: &[Asked], limit: Limit, verdict: &mut Verdict) {
    let admitted: Vec<&Asked> = asked.iter().filter(|one| one.status == 200).collect();
    let mut by_answer = admitted.clone();
    by_answer.sort_by_key(|one| one.answered);
    let burst = tidegate_core::number::float(limit.burst);
    for begin in admitted.iter().map(|one| one.sent) {
        let mut many = 0.0;
        for one in by_answer.iter().filter(|one| one.sent >= begin) {
            many += 1.0;
            let span_s = tidegate_core::number::float(nanos(one.answered.since(begin))) / 1e9;
            let excess = many - burst - limit.rate.as_per_s() * span_s;
            verdict.violations += u64::from(excess > 1e-6);
            verdict.excess_max = verdict.excess_max.max(excess);
        }
    }
}
