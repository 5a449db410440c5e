//! One request and its tries.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE};
use http::{Method, Request, Response, Uri, Version};
use http_body::Body;
use hyper::body::Incoming;
use hyper::upgrade::Upgraded;

use super::endpoint::{Announced, ConnectError};
use super::http2::{Clocked, Sender};
use super::idle::{Keep, Look};
use super::{Lease, Target, Upstream, Upstreams};
use crate::config::UpstreamProtocol;
use crate::io::conn::account::Account;
use crate::io::conn::timers::Timers;
use crate::io::conn::websocket::{make_connect, opened_tunnel};
use crate::io::http1::client::{ExchangeError, Home, Link, Outward, Patience};
use crate::io::request::body::RequestBody;
use crate::io::request::bounds::Timed;
use crate::io::request::response::ResponseBody;
use crate::io::upstream::broken::Broken;
use crate::io::upstream::leased::{Leased, Opened};
use crate::machine::upstream::{Asker, Client, Failure, Flow, Key, Refusal, Replay, Tried, is_idempotent};

/// A request on its way to an upstream.
pub(crate) struct Outbound<'a> {
    /// Method, target and fields.
    pub(crate) head: Outward<'a>,
    /// How long the server may take.
    pub(crate) patience: Patience,
    /// Whose time and bytes it costs.
    pub(crate) account: &'a Rc<Account>,
    /// It came over HTTP/2.
    pub(crate) is_stream: bool,
    /// Who sent it, where the upstream wants to know.
    pub(crate) client: IpAddr,
    /// What it has in common with those that should meet the same server.
    pub(crate) key: Option<Key>,
    /// Whom the server is told about, where the PROXY protocol is spoken with it.
    pub(crate) announced: Option<Rc<Announced>>,
    /// The thread's timers.
    pub(crate) timers: &'a Rc<Timers>,
}

impl Outbound<'_> {
    fn head(&self) -> Outward<'_> {
        let Outward { method, target, headers, upgrade } = self.head;
        Outward { method, target, headers, upgrade }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum SendError {
    /// There is no server for it.
    #[error("no server: {0:?}")]
    Refused(Refusal),
    /// There is no connection.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// There was one, and no answer came over it.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// Over HTTP/2.
    #[error("the upstream broke off: {0}")]
    Http2(#[from] hyper::Error),
    /// A client of HTTP/2 asked for a WebSocket, and the server opens none over HTTP/2.
    #[error("the upstream opens no WebSocket")]
    NoWebSocket,
    /// The target or host is none that HTTP/2 can say.
    #[error("the request cannot be said in HTTP/2")]
    Target(#[from] http::uri::InvalidUri),
}

/// One try that gave no answer.
struct Failed {
    error: SendError,
    /// What a retry may assume; `None` if the server is not to blame.
    failure: Option<Failure>,
    /// The body, if it is still whole.
    body: Option<RequestBody>,
    /// The connection had been kept, and was closed before a byte of an answer: most likely while the request was on its
    /// way, which is nobody's fault.
    stale: bool,
}

/// Pieces that are read of an answer which nobody gets, so that its connection can be used again.
const PASSED_OVER: usize = 4;

/// An answer, and the request's body if it is still whole.
type Answered<B> = (Response<B>, Option<RequestBody>);

/// Whether a connection must be a new one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fresh {
    No,
    Yes,
}

impl Keep for Link {
    fn is_open(&mut self, look: Look) -> bool {
        !match look {
            Look::Known => self.is_stale(),
            Look::Now => self.is_stale_now(),
        }
    }

    fn is_doubtful(&self) -> bool {
        Self::is_doubtful(self)
    }

    fn kept_for(&self) -> Duration {
        Self::kept_for(self)
    }
}

impl Home for Upstream<Link> {
    fn ended(&self, ticket: u64, link: Option<Link>) {
        self.end(ticket, link);
    }
}

impl Upstreams<Link> {
    /// Sends `outbound` to a server of `upstream` and waits for the head of its answer; tries other servers where that
    /// is allowed.
    pub(crate) async fn send(
        &self,
        upstream: Target<'_>,
        outbound: &Outbound<'_>,
        mut body: RequestBody,
    ) -> Result<Response<ResponseBody>, SendError> {
        let Outbound { account, is_stream, .. } = *outbound;
        let flow = Flow { claimant: account.claimant(), tenant: account.tenant().number(), is_stream };
        let group = self.group(flow.tenant, outbound.head.target);
        let asker = Asker { flow, weight: None, group, key: outbound.key };
        let mut tried = Tried::default();
        let mut fresh = Fresh::No;
        loop {
            let announced = outbound.announced.clone();
            let weight = || outbound.account.weight();
            let acquired = self.acquire(upstream, asker, tried, announced, weight).await;
            let mut lease = acquired.map_err(SendError::Refused)?;
            body.count_when_sent(|| lease.is_its_clients(group));
            let answer = match lease.protocol() {
                // In boxes, made when there is a server: every request's task has room for the largest thing that it may come
                // to, and many wait for a server, or for their turn.
                UpstreamProtocol::Http1 => Box::pin(over_http1(&mut lease, outbound, body, fresh)).await,
                UpstreamProtocol::H2c | UpstreamProtocol::Http2 => {
                    match Box::pin(over_http2(&mut lease, outbound, body)).await {
                        Ok(Http2Answer::Opened(head, upgraded)) => return Ok(tunnel(lease, outbound, head, upgraded)),
                        Ok(Http2Answer::Body((answer, spare), broken)) => {
                            lease.answered(answer.status(), Client::of(outbound.client));
                            if let Some((next, whole)) = repeated(&lease, outbound, &answer, spare) {
                                (tried, body) = (next, whole);
                                continue;
                            }
                            let (timer, idle) = (outbound.timers.timer(), outbound.patience.idle);
                            let in_time = |body| Timed::every(idle, Leased::new(body, lease, broken), timer);
                            return Ok(answer.map(|body| ResponseBody::Upstream2(Box::new(in_time(body)))));
                        }
                        Err(failed) => Err(failed),
                    }
                }
            };
            let failed = match answer {
                Ok((answer, spare)) => {
                    lease.answered(answer.status(), Client::of(outbound.client));
                    let Some((next, whole)) = repeated(&lease, outbound, &answer, spare) else { return Ok(answer) };
                    (tried, body) = (next, whole);
                    Box::pin(pass_over(answer.into_body())).await;
                    continue;
                }
                Err(failed) => failed,
            };
            let Some(failure) = failed.failure else { return Err(failed.error) };
            let method = outbound.head.method.as_str();
            if failed.stale {
                match failed.body {
                    Some(whole) if is_idempotent(method) => (body, fresh) = (whole, Fresh::Yes),
                    _ => return Err(failed.error),
                }
                continue;
            }
            if !matches!(failed.error, SendError::Connect(_)) {
                lease.fail(); // A failed connection has been told already.
            }
            let replay = if failed.body.is_some() { Replay::Whole } else { Replay::Spent };
            match (lease.retry(method, failure, replay), failed.body) {
                (Some(next), Some(whole)) => (tried, body) = (next, whole),
                _ => return Err(failed.error),
            }
        }
    }
}

/// The answer of a server that opened a tunnel, which holds its slot.
fn tunnel(
    mut lease: Lease<Link>,
    outbound: &Outbound<'_>,
    head: Response<()>,
    upgraded: Upgraded,
) -> Response<ResponseBody> {
    lease.answered(head.status(), Client::of(outbound.client));
    let opened = Box::new(Opened { upgraded, lease });
    head.map(|()| ResponseBody::Tunnel(opened))
}

/// Which servers a second try avoids and what it sends, if the answer is a reason for one. Takes from the budget.
fn repeated<B>(
    lease: &Lease<Link>,
    outbound: &Outbound<'_>,
    answer: &Response<B>,
    spare: Option<RequestBody>,
) -> Option<(Tried, RequestBody)> {
    let whole = spare?;
    let says_when = answer.headers().contains_key(RETRY_AFTER);
    let failure = Failure::Status { status: answer.status().as_u16(), says_when };
    let tried = lease.retry(outbound.head.method.as_str(), failure, Replay::Whole)?;
    Some((tried, whole))
}

/// Takes what has come of a body that nobody gets. If that is all of it, its connection is kept; else it is closed.
async fn pass_over(mut body: ResponseBody) {
    poll_fn(|context| {
        for _ in 0..PASSED_OVER {
            if !matches!(Pin::new(&mut body).poll_frame(context), Poll::Ready(Some(Ok(_)))) {
                break;
            }
        }
        Poll::Ready(())
    })
    .await;
}

async fn over_http1(
    lease: &mut Lease<Link>,
    outbound: &Outbound<'_>,
    body: RequestBody,
    fresh: Fresh,
) -> Result<Answered<ResponseBody>, Failed> {
    let spare = body.again();
    // What meets a server that closes just now goes out again on another connection, if it may.
    let may_go_again = spare.is_some() && is_idempotent(outbound.head.method.as_str());
    let look = if may_go_again { Look::Known } else { Look::Now };
    let kept = if fresh == Fresh::No { lease.reuse(look) } else { None };
    let link = match kept {
        Some(link) => link,
        None => match lease.connect().await {
            Ok(stream) => Link::new(stream, outbound.timers.timer()),
            Err(error) => {
                let failure = Some(Failure::Unsent);
                return Err(Failed { error: error.into(), failure, body: Some(body), stale: false });
            }
        },
    };
    let used = link.is_used();
    let ticket = lease.hand_over();
    let home: Rc<dyn Home> = Rc::<Upstream<Link>>::clone(lease.upstream());
    let exchange = link.exchange(outbound.head(), body, outbound.patience, outbound.account, (home, ticket));
    match exchange.await {
        Ok(answer) => Ok((answer.map(|body| ResponseBody::Upstream(Box::new(body))), spare)),
        Err(error) => {
            if let ExchangeError::Io(source) = &error {
                lease.broke(source);
            }
            let failure = match error {
                ExchangeError::Request(_) => None,
                ExchangeError::TimedOut => Some(Failure::TimedOut),
                _ => Some(Failure::Lost),
            };
            let stale = used && matches!(error, ExchangeError::Closed | ExchangeError::Io(_));
            Err(Failed { error: error.into(), failure, body: spare, stale })
        }
    }
}

/// What a server of HTTP/2 answered.
enum Http2Answer {
    /// With a body, or none; the request's own may still be sent, and break.
    Body(Answered<Incoming>, Broken),
    /// It opened the tunnel that it was asked for; the head is what a server of HTTP/1 says then.
    Opened(Response<()>, Upgraded),
}

async fn over_http2(
    lease: &mut Lease<Link>,
    outbound: &Outbound<'_>,
    body: RequestBody,
) -> Result<Http2Answer, Failed> {
    let spare = body.again();
    let mut head = match http2_request(&outbound.head, lease.scheme()) {
        Ok(head) => head,
        Err(error) => return Err(Failed { error: error.into(), failure: None, body: None, stale: false }),
    };
    // Who waits for another's attempt has no more patience than who makes it.
    let connected = tokio::time::timeout(lease.connect_timeout(), http2_connection(lease, outbound.account)).await;
    let mut connection = match connected.unwrap_or_else(|_| Err(lease.timed_out().into())) {
        Ok(connection) => connection,
        Err(error) => {
            return Err(Failed { error, failure: Some(Failure::Unsent), body: Some(body), stale: false });
        }
    };
    let mut opens = false;
    if outbound.head.upgrade && head.method() == Method::GET && body.is_end_stream() {
        // What it takes is the first thing that a server says.
        let takes = tokio::time::timeout(lease.connect_timeout(), connection.peer.takes_connect()).await;
        opens = takes.unwrap_or(false);
        if opens {
            make_connect(&mut head);
        } else if outbound.is_stream {
            return Err(Failed { error: SendError::NoWebSocket, failure: None, body: None, stale: false });
        }
    }
    let timer = Rc::new(outbound.timers.timer());
    let payer = connection.tasks.payer(outbound.account);
    let clocked = Clocked::new(body, Rc::clone(&timer), outbound.patience, payer);
    let broken = clocked.broken();
    let mut request = head.map(|()| clocked);
    *request.version_mut() = Version::HTTP_2;
    let mut exchange = std::pin::pin!(connection.requests.try_send_request(request));
    let answer = poll_fn(|context| {
        if let Poll::Ready(answer) = exchange.as_mut().poll(context) {
            return Poll::Ready(Some(answer));
        }
        timer.poll(context).map(|()| None)
    });
    match answer.await {
        Some(Ok(answer)) if opens && answer.status().is_success() => {
            let opened = opened_tunnel(answer, outbound.head.headers).await;
            opened.map(|(head, upgraded)| Http2Answer::Opened(head, upgraded)).map_err(|malformed| {
                let (error, failure) = (ExchangeError::Malformed(malformed).into(), Some(Failure::Lost));
                Failed { error, failure, body: None, stale: false }
            })
        }
        Some(Ok(answer)) => Ok(Http2Answer::Body((answer, spare), broken)),
        Some(Err(mut error)) => {
            if let Some(error) = broken.take() {
                let error = ExchangeError::Request(error).into();
                return Err(Failed { error, failure: None, body: None, stale: false });
            }
            // What comes back was never sent.
            let (unsent, failure) = match error.take_message() {
                Some(request) => (Some(request.into_body().into_inner()), Failure::Unsent),
                None => (spare, Failure::Lost),
            };
            Err(Failed { error: error.into_error().into(), failure: Some(failure), body: unsent, stale: false })
        }
        None => {
            let (error, failure) = (ExchangeError::TimedOut.into(), Some(Failure::TimedOut));
            Err(Failed { error, failure, body: None, stale: false })
        }
    }
}

/// The connection that requests of this tenant to this server share, opened if there is none. One that is announced for a
/// client is not shared: its server would take everybody for that client. Its tenant pays for it.
async fn http2_connection(lease: &mut Lease<Link>, account: &Account) -> Result<Sender, SendError> {
    let upstream = Rc::clone(lease.upstream());
    let (shared, server) = (&upstream.http2, lease.place());
    if lease.is_announced() {
        return Ok(shared.handshake(lease.connect().await?, Some(account.beside())).await?);
    }
    let place = lease.share();
    if let Some(open) = shared.open(server, place) {
        return Ok(open);
    }
    let opening = shared.opening(server, place);
    let _turn = opening.lock().await;
    if let Some(open) = shared.open(server, place) {
        return Ok(open);
    }
    let owner = (!shared.is_common(server, place)).then(|| account.beside());
    let connection = shared.handshake(lease.connect().await?, owner).await?;
    shared.keep(server, place, &connection);
    Ok(connection)
}

/// The head as HTTP/2 says it: the host in the target, and nothing about the connection.
fn http2_request(head: &Outward<'_>, scheme: &str) -> Result<Request<()>, http::uri::InvalidUri> {
    let host = head.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or("");
    let target = if head.target == "*" { "" } else { head.target };
    let uri: Uri = format!("{scheme}://{host}{target}").parse()?;
    let mut headers: HeaderMap = head.headers.clone();
    for name in [HOST, CONNECTION, TRANSFER_ENCODING, UPGRADE, HeaderName::from_static("keep-alive")] {
        headers.remove(name);
    }
    let mut request = Request::new(());
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    Ok(request)
}
