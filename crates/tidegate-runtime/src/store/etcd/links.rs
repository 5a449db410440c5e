//! Connections to the nodes of an etcd, one to each, and which of them is used.
//!
//! All calls use the same node until it fails one of them; then all go on to the next one, but for one that was silent a
//! moment ago. A call that no node answers is given up after [`Links::patience`]. Whether a request that failed may be sent again depends on what it does.

use std::error::Error as _;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use ::http::uri::PathAndQuery;
use futures_core::Stream;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::credentials::{Credentials, Token, is_of_token, tls};
use super::messages::AuthenticateResponse;
use super::rota::{Failure, Rota};
use super::verdict::{Verdict, judge};
use crate::causes::with_causes;
use crate::clock;
use crate::store::error::StoreError;
use crate::store::etcd_options::EtcdOptions;

/// Calls are given up after so many times the span that a node has for an answer: 5 s by default, two elections.
const PATIENCE: u32 = 10;
/// A node that was silent is passed over for so many times that span: 5 s by default, after which a machine that stood
/// still or was cut off is worth another question.
const SHUN: u32 = 10;
/// Wait after every node failed once, doubling up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Largest answer that is read. A page of limits takes 0.3 MiB; one that is larger is asked for again in smaller pages.
pub(super) const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Requests of a stream that wait to be sent: its first, and one that asks whether it is alive.
const WAITING_REQUESTS: usize = 2;
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";
/// Where etcd looks for the token of a user.
const TOKEN: &str = "token";
/// The kernel looks after connections that are silent for so long.
const TCP_KEEPALIVE: Duration = Duration::from_secs(10);

/// What becomes of a request that is sent again though an earlier copy may have been carried out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Effect {
    /// Nothing that anybody would notice.
    Repeatable,
    /// It might be done twice.
    Once,
}

/// Which nodes may answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answers {
    /// Those that know a leader.
    WithLeader,
    /// Any.
    Any,
}

/// The connections.
pub(super) struct Links {
    nodes: Vec<Node>,
    rota: Mutex<Rota>,
    credentials: Credentials,
    answer_within: Duration,
}

struct Node {
    /// As configured.
    name: String,
    endpoint: Endpoint,
    channel: Mutex<Option<Channel>>,
}

/// Why a try failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// See [`Verdict::NotDone`].
    NotDone(String),
    /// See [`Verdict::Unknown`].
    Unknown(String),
    /// There was no connection in time: see [`Verdict::NotDone`].
    Unreached(String),
    /// There was no answer in time: see [`Verdict::Unknown`].
    Silent(String),
    /// The user's token is not good any more: see [`Verdict::NotDone`].
    TokenGone(String),
    /// What is to be shown to the node is not to be used. Nothing was sent.
    Unusable(StoreError),
    /// See [`Verdict::Refused`].
    Refused(Status),
}

impl Trouble {
    /// How the node failed.
    pub(super) const fn failure(&self) -> Failure {
        match self {
            Self::Unreached(_) | Self::Silent(_) => Failure::Silent,
            Self::NotDone(_) | Self::Unknown(_) | Self::Refused(_) | Self::TokenGone(_) | Self::Unusable(_) => {
                Failure::Spoke
            }
        }
    }

    /// What was found.
    pub(super) fn found(self) -> String {
        match self {
            Self::NotDone(found)
            | Self::Unknown(found)
            | Self::Unreached(found)
            | Self::Silent(found)
            | Self::TokenGone(found) => found,
            Self::Refused(status) => said(&status),
            Self::Unusable(error) => with_causes(&error),
        }
    }
}

/// A stream that is open both ways.
pub(super) struct Opened<Q, R> {
    pub(super) requests: mpsc::Sender<Q>,
    pub(super) answers: Streaming<R>,
    /// The node at the other end.
    pub(super) node: usize,
}

impl Links {
    pub(super) fn new(options: &EtcdOptions) -> Result<Self, StoreError> {
        let within = options.time_of_answer();
        let is_https = |name: &String| name.starts_with("https:");
        let tls = options.endpoints().iter().any(is_https).then(|| tls(options)).transpose()?;
        let node = |name: &String| {
            let refused = |error: tonic::transport::Error| StoreError::Refused {
                store: name.clone(),
                found: with_causes(&error),
            };
            let endpoint = Endpoint::from_shared(name.clone()).map_err(refused)?;
            let endpoint = match &tls {
                Some(tls) if is_https(name) => endpoint.tls_config(tls.clone()).map_err(refused)?,
                _ => endpoint,
            };
            let endpoint = endpoint.connect_timeout(within).tcp_nodelay(true).tcp_keepalive(Some(TCP_KEEPALIVE));
            Ok(Node { name: name.clone(), endpoint, channel: Mutex::new(None) })
        };
        let nodes = options.endpoints().iter().map(node).collect::<Result<Vec<_>, StoreError>>()?;
        let rota = Mutex::new(Rota::new(nodes.len(), within.saturating_mul(SHUN)));
        let credentials = Credentials::new(options.as_user().cloned());
        Ok(Self { nodes, rota, credentials, answer_within: within })
    }

    /// How long a node has for an answer.
    pub(super) const fn answer_within(&self) -> Duration {
        self.answer_within
    }

    /// How long a call is tried.
    pub(super) const fn patience(&self) -> Duration {
        self.answer_within.saturating_mul(PATIENCE)
    }

    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn name(&self, node: usize) -> &str {
        &self.nodes[node].name
    }

    /// All nodes, for errors.
    pub(super) fn names(&self) -> String {
        self.nodes.iter().map(|node| node.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The node to use.
    fn current(&self) -> usize {
        lock(&self.rota).current()
    }

    /// Goes on to another node, unless somebody did so already, and forgets the connection to this one.
    pub(super) fn leave(&self, node: usize, how: Failure) {
        *lock(&self.nodes[node].channel) = None;
        let next = lock(&self.rota).leave(node, how, clock::now());
        if let Some(next) = next {
            tracing::debug!(left = %self.nodes[node].name, next = %self.nodes[next].name, "another node of etcd is used");
        }
    }

    /// Sends `request` until a node carries it out.
    ///
    /// # Errors
    /// What etcd refuses, `refused` turns into an error.
    pub(super) async fn call<Q, R>(
        &self,
        path: &'static str,
        effect: Effect,
        request: &Q,
        refused: impl Fn(&str, &Status) -> StoreError,
    ) -> Result<R, StoreError>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let give_up = clock::now() + self.patience();
        let (mut failed, mut pause) = (0_usize, FIRST_PAUSE);
        loop {
            let node = self.current();
            let trouble = match self.ask(node, path, Answers::WithLeader, request).await {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Refused(status)) => return Err(refused(self.name(node), &status)),
                Err(Trouble::Unusable(error)) => return Err(error),
                Err(trouble) => trouble,
            };
            self.leave(node, trouble.failure());
            match trouble {
                Trouble::Unknown(found) | Trouble::Silent(found) if effect == Effect::Once => {
                    return Err(StoreError::OutcomeUnknown { store: self.name(node).to_owned(), found });
                }
                trouble if clock::now() >= give_up => {
                    return Err(StoreError::Unavailable { store: self.names(), found: trouble.found() });
                }
                _ => failed += 1,
            }
            if failed.is_multiple_of(self.nodes.len()) {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// Asks one node, whether it knows a leader or not.
    pub(super) async fn ask_any<Q, R>(&self, node: usize, path: &'static str, request: &Q) -> Result<R, Trouble>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        self.ask(node, path, Answers::Any, request).await
    }

    /// Asks one node once.
    async fn ask<Q, R>(&self, node: usize, path: &'static str, by: Answers, request: &Q) -> Result<R, Trouble>
    where
        Q: Message + Clone + 'static,
        R: Message + Default + 'static,
    {
        let token = self.token(node).await?;
        let answer = self.ask_with(node, path, headed(request.clone(), by, token.as_ref())).await;
        if let (Err(Trouble::TokenGone(_)), Some(token)) = (&answer, &token) {
            self.credentials.forget(token);
        }
        answer
    }

    /// The token of the user, if there is one: that which it has, else one for its password.
    async fn token(&self, node: usize) -> Result<Option<Token>, Trouble> {
        if let Some(token) = self.credentials.token() {
            return Ok(Some(token));
        }
        let Some(request) = self.credentials.request().map_err(Trouble::Unusable)? else { return Ok(None) };
        let request = headed(request, Answers::Any, None);
        let answer = self.ask_with::<_, AuthenticateResponse>(node, AUTHENTICATE, request).await;
        // Whatever became of it, what the token is for was not sent.
        let answer = answer.map_err(|trouble| match trouble {
            Trouble::Silent(found) => Trouble::Unreached(found),
            Trouble::Unknown(found) => Trouble::NotDone(found),
            trouble => trouble,
        })?;
        let token = self.credentials.keep(&answer.token);
        token.map(Some).ok_or_else(|| Trouble::NotDone("a token that no header can hold".to_owned()))
    }

    /// The token that the user had is not used again.
    pub(super) fn doubt_token(&self) {
        self.credentials.forget_any();
    }

    async fn ask_with<Q, R>(&self, node: usize, path: &'static str, request: Request<Q>) -> Result<R, Trouble>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut grpc = self.grpc(node).await?;
        let asked = async {
            grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            let codec = ProstCodec::<Q, R>::default();
            grpc.unary(request, PathAndQuery::from_static(path), codec).await
        };
        match timeout(self.answer_within, asked).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(status)) => Err(trouble(status)),
            Err(_) => Err(Trouble::Silent(self.no_answer())),
        }
    }

    /// Opens a stream to the node in use, with `first` as its first request.
    pub(super) async fn open<Q, R>(&self, path: &'static str, first: Q) -> Result<Opened<Q, R>, (usize, Trouble)>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let node = self.current();
        let at = |trouble| (node, trouble);
        let token = self.token(node).await.map_err(at)?;
        let mut grpc = self.grpc(node).await.map_err(at)?;
        let (requests, waiting) = mpsc::channel(WAITING_REQUESTS);
        requests.try_send(first).expect("a new channel has room for one");
        let opened = async {
            grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            let codec = ProstCodec::<Q, R>::default();
            let request = headed(Outgoing(waiting), Answers::WithLeader, token.as_ref());
            grpc.streaming(request, PathAndQuery::from_static(path), codec).await
        };
        match timeout(self.answer_within, opened).await {
            Ok(Ok(answers)) => Ok(Opened { requests, answers: answers.into_inner(), node }),
            Ok(Err(status)) => Err(at(trouble(status))),
            Err(_) => Err(at(Trouble::Silent(self.no_answer()))),
        }
    }

    pub(super) fn no_answer(&self) -> String {
        format!("no answer within {:?}", self.answer_within)
    }

    /// A client on the connection to `node`, which is made if there is none. Until it is there nothing is sent.
    async fn grpc(&self, node: usize) -> Result<Grpc<Channel>, Trouble> {
        let Node { endpoint, channel, .. } = &self.nodes[node];
        let existing = lock(channel).clone();
        let channel = match existing {
            Some(channel) => channel,
            None => match timeout(self.answer_within, endpoint.connect()).await {
                // Two may connect at once; the second connection is used once and closed.
                Ok(Ok(new)) => lock(channel).get_or_insert(new).clone(),
                Ok(Err(error)) => return Err(Trouble::NotDone(with_causes(&error))),
                Err(_) => return Err(Trouble::Unreached(format!("no connection within {:?}", self.answer_within))),
            },
        };
        Ok(Grpc::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
    }
}

fn trouble(status: Status) -> Trouble {
    if is_of_token(&status) {
        return Trouble::TokenGone(said(&status));
    }
    match judge(&status) {
        Verdict::NotDone => Trouble::NotDone(said(&status)),
        Verdict::Unknown => Trouble::Unknown(said(&status)),
        Verdict::Refused => Trouble::Refused(status),
    }
}

/// What `store` refused, where there is no better word for it.
pub(super) fn refusal(store: &str, status: &Status) -> StoreError {
    StoreError::Refused { store: store.to_owned(), found: said(status) }
}

/// etcd answers requests with this header only while it knows a leader, and ends streams once it has had none for three
/// election time-outs.
fn headed<T>(message: T, by: Answers, token: Option<&Token>) -> Request<T> {
    let mut request = Request::new(message);
    if by == Answers::WithLeader {
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    }
    if let Some(token) = token {
        request.metadata_mut().insert(TOKEN, token.clone());
    }
    request
}

fn said(status: &Status) -> String {
    let cause = if let Some(cause) = status.source() { with_causes(cause) } else { String::new() };
    match (status.message().is_empty(), cause.is_empty() || status.message().contains(&cause)) {
        (false, true) => status.message().to_owned(),
        (false, false) => format!("{}: {cause}", status.message()),
        (true, false) => cause,
        (true, true) => status.code().to_string(),
    }
}

/// No panic happens while a channel is exchanged.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The requests of a stream.
struct Outgoing<T>(mpsc::Receiver<T>);

impl<T> Stream for Outgoing<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}
