//! The service `tidegate.example.Work`, written by hand: its messages are raw bytes, so that no compiler of protobuf
//! is needed. `Do` does its work and answers what it was sent; `Report` first waits for 2 s.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tower::Service;

use crate::work::Shape;

/// The paths of its methods.
pub(crate) const DO: &str = "/tidegate.example.Work/Do";
pub(crate) const REPORT: &str = "/tidegate.example.Work/Report";

/// What a report waits for before it does the work of a call.
const REPORT_WAITS: Duration = Duration::from_secs(2);

/// Messages that are their bytes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Raw;

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

/// The handlers.
#[derive(Clone)]
pub(crate) struct Work {
    pub(crate) rounds: u64,
    pub(crate) shape: Shape,
}

/// The handler of one method.
struct Method {
    work: Work,
    waits: Option<Duration>,
}

impl UnaryService<Bytes> for Method {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (Work { rounds, shape }, waits) = (self.work.clone(), self.waits);
        Box::pin(async move {
            if let Some(wait) = waits {
                tokio::time::sleep(wait).await;
            }
            shape.run(rounds).await;
            Ok(Response::new(request.into_inner()))
        })
    }
}

impl NamedService for Work {
    const NAME: &'static str = "tidegate.example.Work";
}

impl Service<http::Request<Body>> for Work {
    type Response = http::Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let work = self.clone();
        Box::pin(async move {
            let waits = match request.uri().path() {
                DO => None,
                REPORT => Some(REPORT_WAITS),
                _ => return Ok(Status::unimplemented("this service has two methods: Do and Report").into_http()),
            };
            Ok(tonic::server::Grpc::new(Raw).unary(Method { work, waits }, request).await)
        })
    }
}
