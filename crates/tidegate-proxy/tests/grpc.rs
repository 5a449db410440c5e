//! gRPC through the proxy: a tonic client, over HTTP/2 with and without TLS, and a server behind it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod support;

use std::convert::Infallible;
use std::future::{pending, poll_fn, ready};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use futures_core::Stream;
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::Running;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::metadata::{Ascii, MetadataMap, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

/// Longer than anything takes, shorter than anybody waits.
const PATIENCE: Duration = Duration::from_secs(20);
/// More than any message here.
const MESSAGE_MAX: usize = 8 << 20;

/// Messages that are their bytes.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

type Messages = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// What comes through a channel, as a stream.
struct Channelled<T>(UnboundedReceiver<T>);

impl<T> Stream for Channelled<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<Option<T>> {
        self.0.poll_recv(context)
    }
}

fn stream<T>() -> (UnboundedSender<T>, Channelled<T>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (sender, Channelled(receiver))
}

/// Tells when a call ends before its handler does.
struct Watch(UnboundedSender<&'static str>, &'static str);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

/// A service whose methods are called after the kinds that gRPC has.
struct Server {
    address: SocketAddr,
    /// Calls that hang, and those that were cancelled.
    told: UnboundedReceiver<&'static str>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let tell = tell.clone();
                let service = service_fn(move |call| answer(call, tell.clone()));
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { address, told }
    }

    async fn next_told(&mut self) -> &'static str {
        tokio::time::timeout(PATIENCE, self.told.recv()).await.unwrap().unwrap()
    }
}

async fn answer(
    call: http::Request<Incoming>,
    tell: UnboundedSender<&'static str>,
) -> Result<http::Response<tonic::body::Body>, Infallible> {
    let path = call.uri().path().to_owned();
    let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(MESSAGE_MAX);
    Ok(match path.as_str() {
        "/test.Kinds/Unary" => {
            grpc.unary(tower::service_fn(move |call: Request<Bytes>| unary(call, tell.clone())), call).await
        }
        "/test.Kinds/ClientStream" => grpc.client_streaming(tower::service_fn(client_stream), call).await,
        "/test.Kinds/ServerStream" => {
            let service = tower::service_fn(move |call: Request<Bytes>| {
                ready(Ok::<_, Status>(server_stream(&call, tell.clone())))
            });
            grpc.server_streaming(service, call).await
        }
        "/test.Kinds/Both" => {
            let service = tower::service_fn(move |call: Request<Streaming<Bytes>>| {
                ready(Ok::<_, Status>(both(call, tell.clone())))
            });
            grpc.streaming(service, call).await
        }
        _ => Status::unimplemented("there is no such method").into_http(),
    })
}

/// Answers what came, with what its metadata said; some messages have a meaning of their own.
async fn unary(call: Request<Bytes>, tell: UnboundedSender<&'static str>) -> Result<Response<Bytes>, Status> {
    let mut told = MetadataMap::new();
    if let Some(asked) = call.metadata().get("x-ask") {
        told.insert("x-told", asked.clone());
    }
    if let Some(asked) = call.metadata().get_bin("x-ask-bin") {
        told.insert_bin("x-told-bin", asked.clone());
    }
    if let Some(timeout) = call.metadata().get("grpc-timeout") {
        told.insert("x-timeout", timeout.clone());
    }
    match &call.get_ref()[..] {
        b"fail" => return Err(Status::with_metadata(Code::FailedPrecondition, "100 % no: \u{fc}", told)),
        b"hang" => {
            tell.send("begun").unwrap();
            let _watch = Watch(tell, "unary");
            pending::<()>().await;
        }
        _ => {}
    }
    let mut answer = Response::new(call.into_inner());
    *answer.metadata_mut() = told;
    Ok(answer)
}

/// Answers how many messages came; one of them ends the call before that.
async fn client_stream(call: Request<Streaming<Bytes>>) -> Result<Response<Bytes>, Status> {
    let (mut messages, mut count) = (call.into_inner(), 0_u32);
    while let Some(message) = messages.message().await? {
        if message == "enough" {
            return Err(Status::out_of_range("no more of these"));
        }
        count += 1;
    }
    Ok(Response::new(Bytes::from(count.to_string())))
}

/// Gives as many messages as it is told, and then a status.
fn server_stream(call: &Request<Bytes>, tell: UnboundedSender<&'static str>) -> Response<Messages> {
    let (sender, messages) = stream();
    let count: u32 = str::from_utf8(call.get_ref()).unwrap().parse().unwrap();
    for number in 0..count {
        sender.send(Ok(Bytes::from(number.to_string()))).unwrap();
    }
    if count == 0 {
        // Without end: somebody waits for more until the client has enough.
        sender.send(Ok(Bytes::from_static(b"first"))).unwrap();
        tokio::spawn(async move {
            sender.closed().await;
            drop(Watch(tell, "server stream"));
        });
    } else {
        sender.send(Err(Status::aborted(format!("after {count}")))).unwrap();
    }
    Response::new(Box::pin(messages))
}

/// Answers each message when it comes, until it is the last. To tonic, as its features are, a reset is an error or an end.
fn both(call: Request<Streaming<Bytes>>, tell: UnboundedSender<&'static str>) -> Response<Messages> {
    let (sender, answers) = stream();
    let mut messages = call.into_inner();
    tokio::spawn(async move {
        let watch = Watch(tell, "both");
        while let Ok(Some(message)) = messages.message().await {
            if message == "bye" {
                return std::mem::forget(watch);
            }
            let _ = sender.send(Ok(message));
        }
    });
    Response::new(Box::pin(answers))
}

/// A caller of its methods.
#[derive(Clone)]
struct Caller(Channel);

impl Caller {
    async fn connect(proxy: &Running) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", proxy.address())).unwrap();
        Self(endpoint.connect().await.unwrap())
    }

    async fn grpc(&self) -> tonic::client::Grpc<Channel> {
        let mut grpc = tonic::client::Grpc::new(self.0.clone()).max_decoding_message_size(MESSAGE_MAX);
        grpc.ready().await.unwrap();
        grpc
    }

    async fn unary(&self, call: impl tonic::IntoRequest<Bytes>) -> Result<Response<Bytes>, Status> {
        self.grpc().await.unary(call.into_request(), PathAndQuery::from_static("/test.Kinds/Unary"), Raw).await
    }

    async fn client_stream(&self, messages: Channelled<Bytes>) -> Result<Response<Bytes>, Status> {
        let path = PathAndQuery::from_static("/test.Kinds/ClientStream");
        self.grpc().await.client_streaming(Request::new(messages), path, Raw).await
    }

    async fn server_stream(&self, count: &'static str) -> Streaming<Bytes> {
        let path = PathAndQuery::from_static("/test.Kinds/ServerStream");
        let call = Request::new(Bytes::from_static(count.as_bytes()));
        self.grpc().await.server_streaming(call, path, Raw).await.unwrap().into_inner()
    }

    async fn both(&self) -> (UnboundedSender<Bytes>, Streaming<Bytes>) {
        let (sender, messages) = stream();
        let path = PathAndQuery::from_static("/test.Kinds/Both");
        let answer = self.grpc().await.streaming(Request::new(messages), path, Raw).await.unwrap();
        (sender, answer.into_inner())
    }
}

fn bytes(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn tables(address: SocketAddr, listen: &str) -> String {
    format!(
        "[[proxy.listen]]\naddress = \"127.0.0.1:0\"\n{listen}[[proxy.upstream]]\nname = \"u\"\nprotocol = \"h2c\"\n\
         servers = [\"{address}\"]\n[[proxy.route]]\npath = \"/test.Kinds\"\nupstream = \"u\"\n"
    )
}

fn start(address: SocketAddr, more: &str) -> Running {
    Running::start(&format!("{}{more}", tables(address, "")))
}

/// Calls of every kind, and the ways in which they end.
async fn calls_of_all_kinds(caller: &Caller) {
    let mut call = Request::new(bytes("hello"));
    call.metadata_mut().insert("x-ask", "a b".parse().unwrap());
    call.metadata_mut().insert_bin("x-ask-bin", MetadataValue::from_bytes(&[0, 255, 10, 13]));
    call.set_timeout(Duration::from_mins(1));
    let answer = caller.unary(call).await.unwrap();
    assert_eq!(answer.metadata().get("x-told").unwrap(), "a b");
    assert_eq!(answer.metadata().get_bin("x-told-bin").unwrap().to_bytes().unwrap(), &[0, 255, 10, 13][..]);
    assert!(answer.metadata().contains_key("x-timeout"));
    assert_eq!(answer.into_inner(), "hello");
    // An error before any message is one head.
    let mut call = Request::new(bytes("fail"));
    call.metadata_mut().insert_bin("x-ask-bin", MetadataValue::from_bytes(b"\x80why"));
    let status = caller.unary(call).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "100 % no: \u{fc}"));
    assert_eq!(status.metadata().get_bin("x-told-bin").unwrap().to_bytes().unwrap(), &b"\x80why"[..]);
    // 4 MiB there and back.
    let big = Bytes::from(vec![b'x'; 4 << 20]);
    assert!(caller.unary(Request::new(big.clone())).await.unwrap().into_inner() == big);
    // Streams of either side.
    let (sender, messages) = stream();
    (0..100).for_each(|_| sender.send(bytes("one")).unwrap());
    drop(sender);
    assert_eq!(caller.client_stream(messages).await.unwrap().into_inner(), "100");
    let mut answers = caller.server_stream("100").await;
    for number in 0..100 {
        assert_eq!(answers.message().await.unwrap().unwrap(), number.to_string());
    }
    let status = answers.message().await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Aborted, "after 100"));
    // A server that has enough says so while its client still sends.
    let (sender, messages) = stream();
    sender.send(bytes("enough")).unwrap();
    let status = caller.client_stream(messages).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, "no more of these"));
    // Each message is answered before the next one is sent.
    let (sender, mut answers) = caller.both().await;
    for turn in ["one", "two", "three"] {
        sender.send(bytes(turn)).unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap(), turn);
    }
    sender.send(bytes("bye")).unwrap();
    assert_eq!(answers.message().await.unwrap(), None);
    let path = PathAndQuery::from_static("/test.Kinds/No");
    let status = caller.grpc().await.unary(Request::new(Bytes::new()), path, Raw).await;
    assert_eq!(status.map(Response::<Bytes>::into_inner).unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_kinds_pass_without_tls_and_whether_or_not_bodies_wait_on_disk() {
    let server = Server::start().await;
    let directory = std::env::temp_dir().join(format!("tidegate-proxy-grpc-{}", std::process::id()));
    let spool = format!("[proxy.spool]\nabove = \"64KiB\"\ndirectory = \"{}\"\n", directory.display());
    for more in ["", &spool] {
        let proxy = start(server.address, more);
        calls_of_all_kinds(&Caller::connect(&proxy).await).await;
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A certificate on disk, gone with the test.
struct Certificate(PathBuf, rustls::RootCertStore);

impl Certificate {
    fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("tidegate-proxy-grpc-tls-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let made = rcgen::generate_simple_self_signed(["a.example".to_owned()]).unwrap();
        std::fs::write(directory.join("a.pem"), made.cert.pem()).unwrap();
        std::fs::write(directory.join("a.key"), made.signing_key.serialize_pem()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        Self(directory, roots)
    }

    async fn connect(&self, proxy: &Running) -> Caller {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = builder.unwrap().with_root_certificates(self.1.clone()).with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let (address, tls) = (proxy.address(), tokio_rustls::TlsConnector::from(Arc::new(config)));
        let connector = tower::service_fn(move |_: http::Uri| {
            let tls = tls.clone();
            async move {
                let name = rustls::pki_types::ServerName::try_from("a.example").unwrap();
                tls.connect(name, TcpStream::connect(address).await?).await.map(TokioIo::new)
            }
        });
        Caller(Endpoint::from_static("http://a.example").connect_with_connector(connector).await.unwrap())
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_all_kinds_pass_with_tls() {
    let server = Server::start().await;
    let certificate = Certificate::new();
    let directory = certificate.0.display();
    let files = format!("[[proxy.certificate]]\ncert = \"{directory}/a.pem\"\nkey = \"{directory}/a.key\"\n");
    let proxy = Running::start(&format!("{}{files}", tables(server.address, "tls = true\n")));
    calls_of_all_kinds(&certificate.connect(&proxy).await).await;
}

/// Calls under way, once that is known.
fn active(live: &tidegate_proxy::io::admin::status::Live) -> Option<u64> {
    Some(live.upstreams.first()?.servers.first()?.active)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_cancelled_ends_at_its_server() {
    let mut server = Server::start().await;
    let proxy = start(server.address, "");
    let caller = Caller::connect(&proxy).await;
    // By its deadline, which the client keeps; it has begun by then on a busy machine as well.
    let mut call = Request::new(bytes("hang"));
    call.set_timeout(Duration::from_secs(1));
    assert!(caller.unary(call).await.is_err());
    assert_eq!(server.next_told().await, "begun");
    assert_eq!(server.next_told().await, "unary");
    // By its caller, before the head of the answer and behind it.
    let hanging = tokio::spawn({
        let caller = caller.clone();
        async move { caller.unary(Request::new(bytes("hang"))).await }
    });
    assert_eq!(server.next_told().await, "begun");
    hanging.abort();
    assert_eq!(server.next_told().await, "unary");
    let mut answers = caller.server_stream("0").await;
    assert_eq!(answers.message().await.unwrap().unwrap(), "first");
    drop(answers);
    assert_eq!(server.next_told().await, "server stream");
    proxy.wait_until(|live| active(live) == Some(0));
}

/// As other libraries do; tonic ends its own side first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_reset_while_both_sides_send_ends_at_its_server() {
    let mut server = Server::start().await;
    let proxy = start(server.address, "");
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let head = http::Request::post("http://a.example/test.Kinds/Both").header("content-type", "application/grpc");
    let (answer, mut to) = sender.send_request(head.header("te", "trailers").body(()).unwrap(), false).unwrap();
    to.send_data(Bytes::from_static(b"\0\0\0\0\x03one"), false).unwrap();
    let answered = answer.await.unwrap().into_body().data().await.unwrap().unwrap();
    assert_eq!(answered, &b"\0\0\0\0\x03one"[..]);
    to.send_reset(h2::Reason::CANCEL);
    assert_eq!(server.next_told().await, "both");
    proxy.wait_until(|live| active(live) == Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_share_a_connection() {
    let server = Server::start().await;
    let proxy = start(server.address, "");
    let caller = Caller::connect(&proxy).await;
    let calls: Vec<_> = (0..300)
        .map(|number| {
            let caller = caller.clone();
            tokio::spawn(async move {
                let message = Bytes::from(format!("{number}").repeat(number));
                assert!(caller.unary(Request::new(message.clone())).await.unwrap().into_inner() == message);
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    proxy.wait_until(|live| live.requests_total == [300] && live.connections_total == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_the_proxy_are_statuses_of_grpc() {
    let server = Server::start().await;
    let rule = "[proxy.route.rate_limit]\nlimit = 1\nqueue = 0\nretry = \"2s\"\n";
    let proxy = start(server.address, rule);
    let caller = Caller::connect(&proxy).await;
    let hanging = tokio::spawn({
        let caller = caller.clone();
        async move { caller.unary(Request::new(bytes("hang"))).await }
    });
    proxy.wait_until(|live| active(live) == Some(1));
    let refused = caller.unary(Request::new(bytes("hello"))).await.unwrap_err();
    hanging.abort();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "Too many requests are under way."));
    let told = |name: &str| refused.metadata().get(name).map(|value: &MetadataValue<Ascii>| value.to_str().unwrap());
    assert_eq!(told("proxy-status"), Some("tidegate; error=http_request_denied"));
    assert_eq!((told("retry-after"), told("grpc-retry-pushback-ms")), (Some("2"), Some("2000")));
    // They are counted as what they are for other clients.
    proxy.wait_until(|live| live.responses_total[4] > 0);
    // Nothing is left for anybody, or for this tenant.
    let limits = "[proxy.limits]\npatience = \"0s\"\n[proxy.limits.capacities]\nrequests = 20\n";
    let proxy = start(server.address, limits);
    let caller = Caller::connect(&proxy).await;
    let mut refusals = 0;
    for _ in 0..200 {
        let Err(status) = caller.unary(Request::new(bytes("hello"))).await else { continue };
        assert!([Code::ResourceExhausted, Code::Unavailable].contains(&status.code()), "{status:?}");
        assert!(status.message().ends_with('.'), "it says why: {status:?}");
        refusals += 1;
    }
    assert!(refusals > 0);
    // No route, and a server that is not there.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let proxy = start(nobody, "");
    let caller = Caller::connect(&proxy).await;
    let path = PathAndQuery::from_static("/elsewhere.Service/Method");
    let status = caller.grpc().await.unary(Request::new(Bytes::new()), path, Raw).await;
    let status = status.map(Response::<Bytes>::into_inner).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unimplemented, "No route takes this request."));
    let status = caller.unary(Request::new(bytes("hello"))).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "The upstream accepts no connection."));
}

/// What a server of [`scripted`] does with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Does {
    /// Answers, and then says that it takes no more calls on this connection.
    AnswersAndLeaves,
    /// Takes no more calls on this connection, and not this one.
    Leaves,
    /// Begins an answer, and breaks it off.
    BreaksOff,
    /// Asks whether the proxy is there, and answers when it is.
    AnswersAfterPing,
}

/// A server of HTTP/2 that does the same with every call; tells of each connection.
async fn scripted(does: Does) -> (SocketAddr, UnboundedReceiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tell.send(()).unwrap();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                let mut pings = connection.ping_pong().unwrap();
                while let Some(Ok((_call, mut respond))) = connection.accept().await {
                    if does == Does::Leaves {
                        connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                        continue;
                    }
                    if does == Does::AnswersAfterPing {
                        let pong = pings.ping(h2::Ping::opaque());
                        tokio::pin!(pong);
                        // The connection has to be driven meanwhile.
                        poll_fn(|context| {
                            let _ = connection.poll_closed(context);
                            pong.as_mut().poll(context)
                        })
                        .await
                        .unwrap();
                    }
                    let head = http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
                    let mut body = respond.send_response(head, false).unwrap();
                    body.send_data(Bytes::from_static(b"\0\0\0\0\x02ok"), false).unwrap();
                    if does == Does::BreaksOff {
                        // What was said before is not to be overtaken.
                        poll_fn(|context| {
                            let _ = connection.poll_closed(context);
                            std::task::Poll::Ready(())
                        })
                        .await;
                        body.send_reset(h2::Reason::CANCEL);
                        continue;
                    }
                    let status = (http::HeaderName::from_static("grpc-status"), http::HeaderValue::from_static("0"));
                    body.send_trailers([status].into_iter().collect()).unwrap();
                    if does == Does::AnswersAndLeaves {
                        connection.graceful_shutdown();
                    }
                }
            });
        }
    });
    (address, connections)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_more_calls_on_a_connection_gets_them_on_another() {
    let (address, mut connections) = scripted(Does::AnswersAndLeaves).await;
    let proxy = start(address, "");
    let caller = Caller::connect(&proxy).await;
    for _ in 0..10 {
        assert_eq!(caller.unary(Request::new(bytes("hello"))).await.unwrap().into_inner(), "ok");
    }
    assert!(connections.recv().await.is_some() && connections.recv().await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_leaves_or_breaks_off_is_an_error_and_never_an_end() {
    for (does, codes) in
        [(Does::Leaves, &[Code::Unavailable][..]), (Does::BreaksOff, &[Code::Cancelled, Code::Unknown])]
    {
        let (address, _connections) = scripted(does).await;
        let proxy = start(address, "");
        let caller = Caller::connect(&proxy).await;
        for _ in 0..3 {
            let status = caller.unary(Request::new(bytes("hello"))).await.unwrap_err();
            assert!(codes.contains(&status.code()), "{does:?}: {status:?}");
        }
        proxy.wait_until(|live| live.connections_total == 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn either_side_may_ask_whether_the_proxy_is_there() {
    let (address, _connections) = scripted(Does::AnswersAfterPing).await;
    let proxy = start(address, "");
    let caller = Caller::connect(&proxy).await;
    assert_eq!(caller.unary(Request::new(bytes("hello"))).await.unwrap().into_inner(), "ok");
    let stream = TcpStream::connect(proxy.address()).await.unwrap();
    let (_sender, mut connection) = h2::client::handshake(stream).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    let _driven = tokio::spawn(connection);
    for _ in 0..20 {
        tokio::time::timeout(PATIENCE, pings.ping(h2::Ping::opaque())).await.unwrap().unwrap();
    }
}

/// A frame of HTTP/2 on a stream.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0, 0, u8::try_from(payload.len()).unwrap(), kind, flags];
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

#[test]
fn messages_that_cross_the_refusals_of_their_calls_do_not_end_the_connection() {
    let proxy = start(([127, 0, 0, 1], 1).into(), "");
    let mut client = proxy.connect();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    client.write_all(&frame(4, 0, 0, &[])).unwrap();
    let mut block = Vec::new();
    for text in [
        [":method", "POST"],
        [":scheme", "http"],
        [":authority", "a.example"],
        [":path", "/elsewhere.Service/Method"],
        ["content-type", "application/grpc"],
    ] {
        block.push(0);
        for text in text {
            block.push(u8::try_from(text.len()).unwrap());
            block.extend_from_slice(text.as_bytes());
        }
    }
    // More than the library remembers of streams that it has reset, and than the errors that it takes.
    for stream in (1..400).step_by(2) {
        client.write_all(&frame(1, 4, stream, &block)).unwrap();
        loop {
            let mut head = [0; 9];
            client.read_exact(&mut head).unwrap();
            let mut payload = vec![0; usize::from(head[2])];
            client.read_exact(&mut payload).unwrap();
            assert_ne!(head[3], 7, "GOAWAY at {stream}: {}", String::from_utf8_lossy(&payload));
            if head[3] == 1 && head[5..] == stream.to_be_bytes() {
                break;
            }
        }
        client.write_all(&frame(0, 1, stream, b"\0\0\0\0\0")).unwrap();
    }
}
