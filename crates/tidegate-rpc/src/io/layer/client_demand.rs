//! A demand that is told without a call, by one of the calls that wait.
//!
//! There is no task behind it: the call that tells it polls it. If that call ends first, another one takes over.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{Method, Request, Response, Uri};
use tower_service::Service;

use super::caller::Caller;
use super::headers::{ASK, CLIENT, DEMAND_PATH, read_grant, write_ask};
use crate::machine::{Ask, Client};

/// See the module.
pub(super) struct Demand<C: Client, H: Service<Request<B>>, B> {
    caller: Arc<Caller<C>>,
    ask: Ask,
    inner: H,
    request: Option<Request<B>>,
    future: Option<Pin<Box<H::Future>>>,
    over: bool,
}

impl<C, H, B, R> Demand<C, H, B>
where
    C: Client,
    H: Service<Request<B>, Response = Response<R>> + Clone,
    B: Default,
{
    /// Goes on with the demand in `slot`, or takes one over if there is one to tell. `near` is the target of a call to
    /// the same server.
    pub(super) fn drive(slot: &mut Option<Self>, caller: &Arc<Caller<C>>, inner: &H, near: &Uri, cx: &mut Context<'_>) {
        loop {
            if slot.is_none() {
                *slot = caller.take_demand().map(|ask| Self::new(caller, ask, inner, near));
            }
            let Some(demand) = slot else { return };
            if demand.poll(cx).is_pending() {
                return;
            }
            *slot = None;
        }
    }

    fn new(caller: &Arc<Caller<C>>, ask: Ask, inner: &H, near: &Uri) -> Self {
        let mut target = near.clone().into_parts();
        target.path_and_query = Some(PathAndQuery::from_static(DEMAND_PATH));
        let mut request = Request::new(B::default());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = Uri::from_parts(target).expect("the parts of a valid target with another path");
        let headers = request.headers_mut();
        headers.insert(CLIENT, caller.name.clone());
        headers.insert(ASK, write_ask(&Ask { tenant: caller.config.tenant, ..ask }));
        Self {
            caller: Arc::clone(caller),
            ask,
            inner: inner.clone(),
            request: Some(request),
            future: None,
            over: false,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(request) = self.request.take() {
            match self.inner.poll_ready(cx) {
                Poll::Ready(Ok(())) => self.future = Some(Box::pin(self.inner.call(request))),
                Poll::Ready(Err(_)) => {}
                Poll::Pending => {
                    self.request = Some(request);
                    return Poll::Pending;
                }
            }
        }
        if let Some(future) = &mut self.future {
            // A failure is no grant. The calls that wait learn of the broken connection when they are sent.
            if let Ok(answer) = ready!(future.as_mut().poll(cx))
                && let Some(header) = read_grant(answer.headers())
            {
                self.caller.granted(&header);
            }
        }
        self.over = true;
        Poll::Ready(())
    }
}

impl<C: Client, H: Service<Request<B>>, B> Drop for Demand<C, H, B> {
    fn drop(&mut self) {
        if !self.over {
            self.caller.put_demand_back(self.ask);
        }
    }
}
