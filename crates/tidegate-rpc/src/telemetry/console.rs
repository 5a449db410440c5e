//! The page that shows a server's figures, as a service for any HTTP stack. Feature `console`.
//!
//! It only reads. Where several routes meet, mount it as a service under its prefix; where there is one service, wrap this in
//! it as a layer. Either way it stands outside of the server's layer, so that it answers under any load and is no load.
//!
//! ```
//! use axum::Router;
//! use axum::routing::get;
//! use tidegate_rpc::io::layer::ServerLayer;
//! use tidegate_rpc::telemetry::console::Console;
//!
//! let layer = ServerLayer::default();
//! let console = Console::new(layer.telemetry());
//! let router: Router = Router::new().route("/work", get(|| async { "done" })).layer(layer).layer(console);
//! ```

use core::convert::Infallible;
use core::future::{Ready, ready};
use core::pin::Pin;
use core::task::{Context, Poll};
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_runtime::access::{Asked, Guard, Reach, Token};
use tower_layer::Layer;
use tower_service::Service;

use super::{Telemetry, prometheus};
use crate::io::layer::Seen;

const HTML: &str = include_str!("page/index.html");
const SCRIPT: &str = include_str!("page/page.js");
const MODEL: &str = include_str!("page/model.js");
const STYLE: &str = include_str!("page/page.css");
const FIGURES_STYLE: &str = include_str!("page/figures.css");

/// Everything from ourselves, nothing inline, no frames around us.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers that a proxy adds: a request with one of them comes from elsewhere, whatever its last hop was.
const FORWARDED: [HeaderName; 3] =
    [header::FORWARDED, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

/// Who is answered.
#[derive(Clone, Debug, Default)]
pub enum Access {
    /// Programs and browsers of this machine: the peer's address, as the server layer's rule has it, is one of loopback, the
    /// request calls us by a name of loopback, and no proxy passed it on.
    #[default]
    Loopback,
    /// Who sends `Authorization: Bearer <token>`. The page itself takes the token from its address, `…/#token=<token>`.
    Token(Token),
    /// Everybody: the port is reached by those alone who may see the figures.
    Anyone,
}

/// The page, its figures as JSON, and the metrics. Clones show the same server.
#[derive(Clone, Debug)]
pub struct Console(Arc<Shown>);

#[derive(Clone, Debug)]
struct Shown {
    telemetry: Telemetry,
    prefix: String,
    access: Access,
}

impl Console {
    /// Under `/tidegate`, for this machine.
    #[must_use]
    pub fn new(telemetry: Telemetry) -> Self {
        Self(Arc::new(Shown { telemetry, prefix: "/tidegate".to_owned(), access: Access::default() }))
    }

    /// Under another prefix, as browsers see it.
    ///
    /// # Panics
    /// If `prefix` does not begin with `/`, ends with one, or has others than letters, digits, `/`, `-`, `_`, `.` and `~`.
    #[must_use]
    pub fn at(self, prefix: &str) -> Self {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-_.~".contains(&byte);
        let is_path = prefix.starts_with('/') && !prefix.ends_with('/') && prefix.bytes().all(plain);
        assert!(is_path, "`{prefix}` is no prefix like `/tidegate`");
        Self(Arc::new(Shown { prefix: prefix.to_owned(), ..Arc::unwrap_or_clone(self.0) }))
    }

    /// For others.
    #[must_use]
    pub fn access(self, access: Access) -> Self {
        Self(Arc::new(Shown { access, ..Arc::unwrap_or_clone(self.0) }))
    }

    /// Where it stands.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.0.prefix
    }

    /// The answer to a request of that path below the prefix.
    fn answer<B>(&self, path: &str, request: &Request<B>) -> Response<PageBody> {
        let Shown { telemetry, prefix, access } = &*self.0;
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut answer = text(StatusCode::METHOD_NOT_ALLOWED, "the console only shows: GET and HEAD\n".to_owned());
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return answer;
        }
        let fixed = match path {
            "" | "/" => Some(("text/html; charset=utf-8", HTML.replace("{prefix}", prefix))),
            "/page.js" => Some(("text/javascript; charset=utf-8", SCRIPT.to_owned())),
            "/model.js" => Some(("text/javascript; charset=utf-8", MODEL.to_owned())),
            "/page.css" => Some(("text/css; charset=utf-8", STYLE.to_owned())),
            "/figures.css" => Some(("text/css; charset=utf-8", FIGURES_STYLE.to_owned())),
            _ => None,
        };
        let denied = access.check(fixed.is_some(), telemetry, request);
        if let Err((status, why)) = denied {
            return text(status, format!("{why}\n"));
        }
        match (fixed, path) {
            (Some((kind, page)), _) => ok(kind, page),
            (None, "/state.json") => {
                let figures = serde_json::to_string(&telemetry.figures()).expect("numbers and words");
                ok("application/json", figures)
            }
            (None, "/metrics") => ok(prometheus::CONTENT_TYPE, telemetry.prometheus()),
            (None, _) => text(StatusCode::NOT_FOUND, format!("the page is at {prefix}\n")),
        }
    }
}

impl Access {
    /// Whether a request is answered, else why not; `is_fixed` if it asks for what is the same for every server.
    fn check<B>(
        &self,
        is_fixed: bool,
        telemetry: &Telemetry,
        request: &Request<B>,
    ) -> Result<(), (StatusCode, String)> {
        let forbidden = |why: &str| Err((StatusCode::FORBIDDEN, why.to_owned()));
        let guard = match self {
            Self::Anyone => return Ok(()),
            Self::Token(_) if is_fixed => return Ok(()),
            Self::Token(token) => Guard { token: Some(token.clone()), reach: Reach::Network },
            Self::Loopback => {
                let seen = Seen { uri: request.uri(), headers: request.headers(), extensions: request.extensions() };
                // A rule for peers may read what a caller wrote; its connection's own other end may not be elsewhere.
                let elsewhere = seen.peer().map(|peer| peer.ip()).filter(|peer| !is_loopback(*peer));
                match elsewhere.or_else(|| telemetry.source.peer(seen)) {
                    None => {
                        return forbidden(
                            "the console is for this machine alone, and the server does not know who asks: give it \
                             `ServerConfig::peer`, or the console another `Access`",
                        );
                    }
                    Some(peer) if !is_loopback(peer) => {
                        return forbidden("the console is for this machine alone; a tunnel to it reaches it");
                    }
                    Some(_) if FORWARDED.iter().any(|name| request.headers().contains_key(name)) => {
                        return forbidden("the console is for this machine alone, and a proxy passed this request on");
                    }
                    Some(_) => Guard { token: None, reach: Reach::Loopback },
                }
            }
        };
        let told = |name| request.headers().get(name).map(|value: &HeaderValue| value.to_str().unwrap_or("?"));
        let asked = Asked {
            reads: true,
            path: "/tidegate",
            // HTTP/2 has it in the target.
            host: told(header::HOST).or_else(|| request.uri().authority().map(http::uri::Authority::as_str)),
            origin: told(header::ORIGIN),
            authorization: told(header::AUTHORIZATION),
        };
        let status = |status| StatusCode::from_u16(status).unwrap_or(StatusCode::FORBIDDEN);
        guard.check(asked).map_err(|denied| (status(denied.status()), denied.to_string()))
    }
}

fn is_loopback(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

fn ok(kind: &'static str, page: String) -> Response<PageBody> {
    answer(StatusCode::OK, kind, page)
}

fn text(status: StatusCode, text: String) -> Response<PageBody> {
    answer(status, "text/plain; charset=utf-8", text)
}

fn answer(status: StatusCode, kind: &'static str, page: String) -> Response<PageBody> {
    let headers = HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ]);
    let mut answer = Response::new(PageBody(Some(page.into())));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    answer
}

/// Under a prefix that the router strips, or does not.
impl<B> Service<Request<B>> for Console {
    type Response = Response<PageBody>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let path = request.uri().path();
        let below = below(path, self.prefix()).unwrap_or(path);
        ready(Ok(self.answer(below, &request)))
    }
}

/// What follows `prefix` in `path`: nothing, or something that begins with `/`.
fn below<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    path.strip_prefix(prefix).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl<H> Layer<H> for Console {
    type Service = WithConsole<H>;

    fn layer(&self, inner: H) -> WithConsole<H> {
        WithConsole { console: self.clone(), inner }
    }
}

/// A service with the console beside it: requests below its prefix are the console's, all others the service's.
#[derive(Clone, Debug)]
pub struct WithConsole<H> {
    console: Console,
    inner: H,
}

impl<H, B, R> Service<Request<B>> for WithConsole<H>
where
    H: Service<Request<B>, Response = Response<R>>,
{
    type Response = Response<EitherBody<R>>;
    type Error = H::Error;
    type Future = ConsoleFuture<H::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), H::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let answering = match below(request.uri().path(), self.console.prefix()) {
            Some(path) => Answering::Page { answer: Some(self.console.answer(path, &request)) },
            None => Answering::Inner { future: self.inner.call(request) },
        };
        ConsoleFuture { answering }
    }
}

pin_project! {
    /// The answer to come: the console's, or the service's.
    pub struct ConsoleFuture<F> {
        #[pin]
        answering: Answering<F>,
    }
}

pin_project! {
    #[project = AnsweringNow]
    enum Answering<F> {
        Page { answer: Option<Response<PageBody>> },
        Inner { #[pin] future: F },
    }
}

impl<F, R, E> Future for ConsoleFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<EitherBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().answering.project() {
            AnsweringNow::Page { answer } => {
                let answer = answer.take().expect("polled after its answer");
                Poll::Ready(Ok(answer.map(|page| EitherBody { whose: Whose::Page { page } })))
            }
            AnsweringNow::Inner { future } => {
                future.poll(cx).map_ok(|answer| answer.map(|body| EitherBody { whose: Whose::Inner { body } }))
            }
        }
    }
}

/// A page in one piece.
#[derive(Clone, Debug)]
pub struct PageBody(Option<Bytes>);

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|page| Ok(Frame::data(page))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.as_ref().map_or(0, |page| page.len() as u64))
    }
}

pin_project! {
    /// The console's body or the service's.
    #[derive(Debug)]
    pub struct EitherBody<R> {
        #[pin]
        whose: Whose<R>,
    }
}

pin_project! {
    #[project = WhoseNow]
    #[derive(Debug)]
    enum Whose<R> {
        Page { #[pin] page: PageBody },
        Inner { #[pin] body: R },
    }
}

impl<R: Body<Data = Bytes>> Body for EitherBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        match self.project().whose.project() {
            WhoseNow::Page { page } => page.poll_frame(cx).map_err(|never| match never {}),
            WhoseNow::Inner { body } => body.poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.whose {
            Whose::Page { page } => page.is_end_stream(),
            Whose::Inner { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.whose {
            Whose::Page { page } => page.size_hint(),
            Whose::Inner { body } => body.size_hint(),
        }
    }
}
